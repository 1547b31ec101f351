"""Rewrites before lowering: batch normalisation goes into the weights before it, activations into the operator before them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyasc.models.tflite.graph import Graph, Node

_TAKES_ACTIVATION = {"Conv", "Gemm", "Add", "Sub", "Mul", "Div"}
_CLIPS = {(0.0, 6.0): "RELU6", (0.0, np.inf): "RELU", (-1.0, 1.0): "RELU_N1_TO_1"}


def fuse(graph: Graph) -> None:
    """Fold and fuse in place; what the graph computes does not change."""
    _each_follower(graph, _fold_normalization)
    _each_follower(graph, _fuse_activation)


def clip_range(graph: Graph, node: Node) -> tuple[float, float] | None:
    """Lower and upper bound of a Clip node (infinite where absent); None when one is no constant number."""
    bounds = [float(node.attributes.get("min", -np.inf)), float(node.attributes.get("max", np.inf))]
    for index in (1, 2):
        if node.has(index):
            bound = graph.constants.get(node.inputs[index])
            if bound is None or bound.size != 1:
                return None
            bounds[index - 1] = float(bound.reshape(-1)[0])
    return bounds[0], bounds[1]


def normalization(graph: Graph, node: Node) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Scale and offset a channel, float64, of a BatchNormalization; None when its parameters are no constants of one length."""
    if not all(name in graph.constants for name in node.inputs[1:5]) or node.attributes.get("training_mode", 0):
        return None
    if len({graph.constants[name].shape for name in node.inputs[1:5]}) > 1 or graph.constants[node.inputs[1]].ndim != 1:
        return None
    scale, bias, mean, variance = (np.asarray(graph.constants[name], np.float64) for name in node.inputs[1:5])
    factor = scale / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    return factor, bias - mean * factor


def _each_follower(graph: Graph, rewrite: Any) -> None:
    """Offer each node with its only reader to `rewrite`, which returns True when it has taken the reader in."""
    readers = graph.consumers()
    gone: set[int] = set()
    for node in graph.nodes:
        while id(node) not in gone:
            following = readers.get(node.outputs[0], [])
            if len(following) != 1 or node.outputs[0] in graph.outputs or not rewrite(graph, node, following[0]):
                break
            node.outputs = following[0].outputs[:1]
            gone.add(id(following[0]))
    graph.nodes = [node for node in graph.nodes if id(node) not in gone]


def _fold_normalization(graph: Graph, node: Node, follower: Node) -> bool:
    if follower.op != "BatchNormalization" or node.op not in ("Conv", "Gemm"):
        return False
    if not all(name in graph.constants for name in node.inputs[1:] if name):
        return False
    parameters = normalization(graph, follower)
    if parameters is None or follower.inputs[0] != node.outputs[0]:
        return False
    factor, offset = parameters
    weight = np.asarray(graph.constants[node.inputs[1]], np.float64)
    bias = np.asarray(graph.constants[node.inputs[2]], np.float64) if node.has(2) else np.zeros(1)
    columns = node.op == "Gemm" and not node.attributes.get("transB", 0)
    if weight.ndim < 2 or weight.shape[columns] != len(factor) or bias.size not in (1, len(factor)):
        return False
    if node.op == "Gemm":
        # y = alpha * A B + beta * C: the factors become part of the constants.
        weight = weight * node.attributes.pop("alpha", 1.0)
        bias = bias * node.attributes.pop("beta", 1.0)
        weight = weight * (factor if columns else factor[:, None])
    else:
        weight = weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    names = [f"{node.inputs[1]};{follower.outputs[0]}", f"{node.outputs[0]};bias"]
    graph.constants[names[0]] = weight.astype(np.float32)
    graph.constants[names[1]] = (bias * factor + offset).astype(np.float32)
    node.inputs = [node.inputs[0], *names]
    return True


def _fuse_activation(graph: Graph, node: Node, follower: Node) -> bool:
    if node.op not in _TAKES_ACTIVATION or node.activation != "NONE" or follower.inputs[0] != node.outputs[0]:
        return False
    kind = "RELU" if follower.op == "Relu" else "NONE"
    if follower.op == "Clip":
        bounds = clip_range(graph, follower)
        kind = _CLIPS.get(bounds, "NONE") if bounds else "NONE"
    if kind == "NONE":
        return False
    node.activation = kind
    return True
