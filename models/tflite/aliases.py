"""Keeps apart what the engines' own kernels would let share memory.

Without XNNPACK the engines let the result of a RESHAPE lie where its source lies, and some operators, such as ADD and MUL, write
their result over an input that nothing else reads. For the second they count the readers of that input and of the tensor that the
memory was made for, and none of the tensors between the two; so they overwrite what is still needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ai_edge_litert import schema_py_generated as schema

from pyasc.models.tflite.file import Operator, TfliteFile
from pyasc.models.tflite.layout import identity

# By how many axes they have; also the versions of TRANSPOSE for a change of order.
_TRANSPOSE_VERSIONS = {5: 4, 6: 6}


def separate(file: TfliteFile, inputs: Collection[int], outputs: Collection[int]) -> None:
    """Take out operators whose results nothing reads, and copy the result of each RESHAPE whose source is needed after it.

    Then at most one of the tensors that share memory is needed at any time, and whatever the engines write over is needed no more.

    Args:
        inputs: tensors that are the model's inputs; the engines let nothing share their memory.
        outputs: tensors that are the model's outputs; the engines let none of them lie where another tensor lies.
    """
    file.operators = _needed(file.operators, outputs)
    last = {tensor: index for index, operator in enumerate(file.operators) for tensor in operator.inputs}
    last.update(dict.fromkeys(outputs, len(file.operators)))
    operators, file.operators = file.operators, []
    for index, operator in enumerate(operators):
        source, result = operator.inputs[0], operator.outputs[0]
        shape = file.tensors[result].shape
        shares = operator.op == "RESHAPE" and source not in inputs and result not in outputs
        # The kernels that write over an input leave single numbers alone, and TRANSPOSE, the copy, does not take them.
        if shares and shape and last[source] > index:
            view = file.add_tensor(file.tensors[result].name, shape)
            file.add_operator("RESHAPE", operator.inputs, [view], operator.options, operator.version)
            add_transpose(file, view, identity(len(shape)), result)
        else:
            file.operators.append(operator)


def add_transpose(file: TfliteFile, source: int, perm: Iterable[int], result: int) -> None:
    """Write a TRANSPOSE: axis i of the result is axis perm[i] of the source."""
    order = tuple(perm)
    version = max((version for rank, version in _TRANSPOSE_VERSIONS.items() if len(order) >= rank), default=1)
    constant = file.add_integers("perm", order)
    file.add_operator("TRANSPOSE", [source, constant], [result], schema.TransposeOptionsT(), version)


def _needed(operators: list[Operator], outputs: Collection[int]) -> list[Operator]:
    wanted = set(outputs)
    kept = []
    for operator in reversed(operators):
        if wanted.intersection(operator.outputs):
            wanted.update(operator.inputs)
            kept.append(operator)
    return kept[::-1]
