"""Is the source itself ill-conditioned? Its inputs are moved by one unit in the last place.

Where that changes the outputs by more than limits may be, no comparison with other kernels can be
judged: the report says so, and names the operator where the change begins to grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from pipeline.program.inputs import InputSet
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import node_label
from pipeline.program.signature import flatten
from pipeline.program.source_lines import source_line
from pipeline.validate.default_limits import TIMES
from pipeline.validate.locate.node_values import NodeValues
from pipeline.validate.metrics import compare


def describe_conditioning(
    program: ExportedProgram, inputs: InputSet, most_share: float, root: Path | None = None
) -> str:
    """Say how ill-conditioned a program is, and where that begins; "" where it is not.

    Inputs are moved first, then weights too: a method whose inputs are integers has no others.

    Args:
        most_share: the share of the signal beyond which a limit means nothing.

    Raises whatever an operator raises.
    """
    leaves = flatten(program, inputs)
    plain = NodeValues(program)
    expected = plain.call(leaves)
    enough = most_share / TIMES  # limits are this multiple of what rounding does
    for what, weights in (("inputs", False), ("inputs and weights", True)):
        moved = NodeValues(program)
        if weights:
            _move_weights(moved)
        actual = moved.call([_move(value) for value in leaves])
        share = max(map(_share, actual, expected), default=0.0)
        if share > enough:
            start = _describe_start(plain, moved, enough, root)
            return (
                f"ill-conditioned: {what} moved by one unit in the last place change the source's "
                f"own outputs by {share:.1%}{start}"
            )
    return ""


def _describe_start(plain: NodeValues, moved: NodeValues, enough: float, root: Path | None) -> str:
    """Name the first operator that gives a change greater than `enough`."""
    for place, node in enumerate(plain.nodes):
        if node.op != "call_function" or place not in plain.values or place not in moved.values:
            continue
        if _share_of_lists(moved.values[place], plain.values[place]) > enough:
            line = source_line(node, root)
            where = " in ".join(filter(None, (node_label(node), innermost_module(node))))
            return f"; it starts at {where}{f' ({line})' if line else ''}"
    return ""


def _share_of_lists(actual: Sequence[Any], expected: Sequence[Any]) -> float:
    leaves = zip(_tensors(actual), _tensors(expected), strict=False)
    return max((_share(a, e) for a, e in leaves), default=0.0)


def _tensors(values: Any) -> list[Tensor]:
    return [v for v in torch.utils._pytree.tree_leaves(values) if isinstance(v, Tensor)]


def _share(actual: Any, expected: Any) -> float:
    """Return the noise of a value as a share of its signal; of integers, whether any differs."""
    error = compare(actual, expected)
    if not isinstance(expected, Tensor) or not expected.dtype.is_floating_point:
        return float(error.max_abs > 0)
    return 0.0 if error.sqnr_db is None else float(10 ** (-error.sqnr_db / 20))


def _move_weights(source: NodeValues) -> None:
    """Move the parameters of a source, which it shares with its program, in copies."""
    module = source._module
    for name, parameter in list(module.named_parameters()):
        owner, _, attribute = name.rpartition(".")
        moved = torch.nn.Parameter(_move(parameter.detach()), requires_grad=False)
        setattr(module.get_submodule(owner), attribute, moved)


def _move(value: Any) -> Any:
    """Move each number by one unit in the last place, up and down in turn."""
    if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
        return value
    signs = 1 - 2 * (torch.arange(value.numel()).reshape(value.shape) % 2)
    wide = value.to(torch.float64)
    return (wide * (1 + torch.finfo(value.dtype).eps * signs)).to(value.dtype)
