"""Finds inputs that lie far beyond the range that calibration gave them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.export import ExportedProgram

from pipeline.program.inputs import InputSet
from pipeline.program.operators import operator_name
from pipeline.program.signature import pair_leaves

# Times the range: ranges that cut off outliers on purpose are exceeded by less.
_FAR = 4.0
_QUANTIZE = "quantized_decomposed.quantize_per_tensor"


def describe_far_inputs(
    quantized: ExportedProgram, examples: Sequence[InputSet]
) -> str:
    """Return a clause on the first input whose examples far exceed its range, or "".

    Far means more than four times as far as the range that the statically quantized program allows.
    """
    for place, (least, greatest) in _find_ranges(quantized):
        reach = 0.0
        name = ""
        for inputs in examples:
            pairs, _ = pair_leaves(quantized, inputs)
            argument, value = pairs[place]
            if isinstance(value, Tensor) and value.numel():
                reach = max(reach, float(value.abs().max()))
                name = argument.name
        if reach > _FAR * max(-least, greatest):
            return (
                f"; examples of its input {name} reach {reach:.3g}, and calibration gave it the "
                f"range from {least:.3g} to {greatest:.3g}: calibrate on inputs like the examples"
            )
    return ""


def _find_ranges(
    program: ExportedProgram,
) -> Iterator[tuple[int, tuple[float, float]]]:
    """Yield the place of each statically quantized input, with its least and greatest value."""
    nodes: dict[str, Any] = {}
    for node in program.graph.find_nodes(op="placeholder"):
        nodes[node.name] = node
    for place, name in enumerate(program.graph_signature.user_inputs):
        node = nodes.get(str(name))
        for user in node.users if node else ():
            if operator_name(user) != _QUANTIZE or user.all_input_nodes != [node]:
                continue  # for example, its scale is computed in the call
            scale, zero, least, greatest = user.args[1:5]
            yield place, ((least - zero) * scale, (greatest - zero) * scale)
            break
