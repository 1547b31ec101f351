"""Where each operator of a graph runs: on the accelerator as far as it can, the rest on the CPU, with few changes between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pyasc.models.npu.layers import Layer, Refusal, lower
from pyasc.models.tflite.graph import Graph, Node


@dataclass(frozen=True)
class Part:
    """Operators that run one after the other in one place.

    Attributes:
        on: `npu` or `cpu`.
        layers: of the accelerator, in order; empty on the CPU.
        nodes: of the graph that it stands for, in the graph's order.
        inputs, outputs: values that come from before it, and that go to later parts or out of the graph.
    """

    on: Literal["npu", "cpu"]
    layers: tuple[Layer, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass
class _Unit:
    """What is moved as one: a layer with its nodes, or a node that the accelerator does not take."""

    nodes: list[Node]
    layer: Layer | None
    level: int = 0
    inputs: Sequence[str] = field(default_factory=tuple)
    outputs: Sequence[str] = field(default_factory=tuple)


def partition(graph: Graph) -> tuple[list[Part], list[Refusal]]:
    """Cut a graph into parts.

    An operator runs as early as its inputs allow, so that the number of changes between the two places is the least that any path
    through the graph needs. What the accelerator could do between two changes without a convolution is not worth them, and goes to
    the CPU.

    Args:
        graph: as `read_graph` gives it, with normalisations folded where they can be.
    Returns:
        the parts in the order in which they run, and every operator that runs on the CPU with the reason.
    """
    layers, refusals = lower(graph)
    makers = {name: node for node in graph.nodes for name in node.outputs}
    places = {id(node): place for place, node in enumerate(graph.nodes)}
    units = [_layer_unit(layer, makers, places) for layer in layers]
    units += [_Unit([refusal.node], None, 0, refusal.node.inputs, refusal.node.outputs) for refusal in refusals]
    units.sort(key=lambda unit: places[id(unit.nodes[-1])])
    while moved := _to_move(graph, units):
        refusals += [Refusal(node, reason) for unit, reason in moved for node in unit.nodes]
        gone = {id(unit) for unit, _ in moved}
        units = [part for unit in units for part in (_singly(unit) if id(unit) in gone else [unit])]
    refusals.sort(key=lambda refusal: places[id(refusal.node)])
    return _parts(graph, units), refusals


def _layer_unit(layer: Layer, makers: dict[str, Node], places: dict[int, int]) -> _Unit:
    """A layer with all nodes between its inputs and its output."""
    nodes: dict[int, Node] = {}
    waiting = [layer.output]
    while waiting:
        name = waiting.pop()
        if name in layer.inputs or name not in makers or id(makers[name]) in nodes:
            continue
        nodes[id(makers[name])] = makers[name]
        waiting += makers[name].inputs
    ordered = sorted(nodes.values(), key=lambda node: places[id(node)])
    return _Unit(ordered, layer, 0, layer.inputs, (layer.output,))


def _singly(unit: _Unit) -> list[_Unit]:
    return [_Unit([node], None, 0, node.inputs, node.outputs) for node in unit.nodes]


def _assign(units: list[_Unit]) -> None:
    """Levels: even ones on the accelerator, odd ones on the CPU; each unit at the lowest that its inputs allow."""
    level_of: dict[str, int] = {}
    for unit in units:
        side = 0 if unit.layer else 1
        before = max((level_of[name] for name in unit.inputs if name in level_of), default=side)
        unit.level = before if before % 2 == side else before + 1
        for name in unit.outputs:
            level_of[name] = unit.level


def _to_move(graph: Graph, units: list[_Unit]) -> list[tuple[_Unit, str]]:
    """Layers that have to go to the CPU, with the reason."""
    _assign(units)
    worth = {unit.level for unit in units if unit.layer and unit.layer.kind == "conv"}
    moved = [
        (unit, "between operators of the CPU, where changing places costs more than it takes")
        for unit in units
        if unit.layer and unit.level not in worth
    ]
    if moved:
        return moved
    # The accelerator's order of a picture as a vector is not the graph's: it must not be seen by anybody else.
    level_of = {name: unit.level for unit in units for name in unit.outputs}
    flat = [unit for unit in units if unit.layer and unit.layer.kind == "flatten"]
    seen = {
        unit.outputs[0] for unit in flat for reader in units if unit.outputs[0] in reader.inputs and not reader.layer
    }
    bad = {name for name in seen if name in level_of}
    return [
        (unit, "the CPU reads the same vector, whose numbers the accelerator has in another order")
        for unit in units
        if unit.layer and (bad.intersection(unit.outputs) or bad.intersection(unit.inputs))
    ]


def _parts(graph: Graph, units: list[_Unit]) -> list[Part]:
    _assign(units)
    levels = sorted({unit.level for unit in units})
    level_of = {name: unit.level for unit in units for name in unit.outputs}
    read_at: dict[str, set[int]] = {}
    for unit in units:
        for name in unit.inputs:
            read_at.setdefault(name, set()).add(unit.level)
    parts = []
    for level in levels:
        inside = [unit for unit in units if unit.level == level]
        taken = _unique(name for unit in inside for name in unit.inputs)
        made = _unique(name for unit in inside for name in unit.outputs)
        parts.append(
            Part(
                on="cpu" if level % 2 else "npu",
                layers=tuple(unit.layer for unit in inside if unit.layer),
                nodes=tuple(node for unit in inside for node in unit.nodes),
                inputs=tuple(
                    name for name in taken if level_of.get(name) != level and (name in level_of or name in graph.inputs)
                ),
                outputs=tuple(name for name in made if name in graph.outputs or read_at.get(name, set()) - {level}),
            )
        )
    return parts


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
