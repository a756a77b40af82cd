"""Finds out whether a source itself is ill-conditioned.

The source runs in float64, and on inputs moved by one unit in the last place. If that changes the
outputs by more than any meaningful limit, no comparison with other kernels can be judged: the
report says so, and names the operator at which the change begins to grow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from pipeline.program.inputs import InputSet
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import node_label
from pipeline.program.signature import flatten
from pipeline.program.source_lines import source_line
from pipeline.validate.default_limits import TIMES
from pipeline.validate.metrics import compare
from pipeline.validate.node_values import NodeValues, Walker


def describe_conditioning(
    program: ExportedProgram,
    inputs: InputSet,
    most_share: float,
    root: Path | None = None,
) -> str:
    """Return how ill-conditioned a program is and where that begins, or "" if it isn't.

    Args:
        most_share: the share of the signal beyond which a limit is meaningless.
    """
    leaves = flatten(program, inputs)
    plain = NodeValues(program)
    expected = plain.call(leaves)
    enough = most_share / TIMES  # limits are this multiple of the error of rounding
    for words, run in _WAYS.items():
        try:
            moved, actual = run(program, leaves)
            share = max(map(_share, actual, expected), default=0.0)
        except Exception:  # an operator may raise anything, for another dtype say
            continue
        if share > enough:
            start = _describe_start(plain, moved, enough, root)
            return f"ill-conditioned: {words} its own outputs by {share:.1%}{start}"
    return ""


Moved = tuple[NodeValues, list[Any]]


def _run_wide(program: ExportedProgram, leaves: list[Any]) -> Moved:
    """Run a program in float64."""
    source = WideValues(program)
    return source, source.call([_widen(value) for value in leaves])


def _run_moved(program: ExportedProgram, leaves: list[Any]) -> Moved:
    """Run a program on inputs that are moved by one unit in the last place."""
    source = NodeValues(program)
    return source, source.call([_move(value) for value in leaves])


def _run_with_moved_weights(program: ExportedProgram, leaves: list[Any]) -> Moved:
    """Run a program with its weights moved, too: its inputs may all be integers."""
    source = NodeValues(program)
    _replace_weights(source, _move)
    return source, source.call([_move(value) for value in leaves])


_WAYS: Mapping[str, Callable[[ExportedProgram, list[Any]], Moved]] = {
    "computing in float64 changes": _run_wide,
    "moving its inputs by one unit in the last place changes": _run_moved,
    "moving its inputs and weights by one unit in the last place changes": _run_with_moved_weights,
}


class WideValues(NodeValues):
    """A source program in float64 in place of float32, which keeps its nodes' values."""

    def __init__(
        self, program: ExportedProgram, common: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__(program, common)
        _replace_weights(self, _widen)

    def _run(self, leaves: list[Any]) -> list[Any]:
        with torch.no_grad():
            walker = _WideWalker(self.module, self._keep)
            returned = walker.run(*leaves, enable_io_processing=False)
        changed = [leaves[index] for index in self._changed]
        return changed + pytree.tree_leaves(returned)


class _WideWalker(Walker):
    """Runs a graph in float64 in place of float32."""

    def call_function(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        wide_args, wide_kwargs = pytree.tree_map(_widen_dtype, (args, kwargs))
        result = super().call_function(target, wide_args, wide_kwargs)
        return pytree.tree_map(_widen, result)

    def get_attr(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        value = super().get_attr(target, args, kwargs)
        return _widen(value)


def _widen(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype is torch.float32:
        return value.double()
    return value


def _widen_dtype(value: Any) -> Any:
    if value is torch.float32:
        return torch.float64
    return value


def _describe_start(
    plain: NodeValues, moved: NodeValues, enough: float, root: Path | None
) -> str:
    """Return a phrase with the first operator that causes a change greater than `enough`, or ""."""
    for place, node in enumerate(plain.nodes):
        if node.op != "call_function":
            continue
        if place not in plain.values or place not in moved.values:
            continue
        if _share_of_lists(moved.values[place], plain.values[place]) > enough:
            return f"; it starts at {_describe_node(node, root)}"
    return ""


def _describe_node(node: Node, root: Path | None) -> str:
    description = node_label(node)
    module = innermost_module(node)
    if module:
        description += f" in {module}"
    line = source_line(node, root)
    if line:
        description += f" ({line})"
    return description


def _share_of_lists(actual: Sequence[Any], expected: Sequence[Any]) -> float:
    leaves = zip(_tensors(actual), _tensors(expected), strict=False)
    return max((_share(a, e) for a, e in leaves), default=0.0)


def _tensors(values: Any) -> list[Tensor]:
    return [v for v in pytree.tree_leaves(values) if isinstance(v, Tensor)]


def _share(actual: Any, expected: Any) -> float:
    """Return the noise of a value as a share of its signal; for integers, 1 if any differs."""
    both = isinstance(actual, Tensor) and isinstance(expected, Tensor)
    if both and actual.dtype is torch.float64:
        actual = actual.to(expected.dtype)
    error = compare(actual, expected)
    if error.disagreeing:
        return 1.0
    if not isinstance(expected, Tensor) or not expected.dtype.is_floating_point:
        return float(error.max_abs > 0)
    if error.sqnr_db is None:
        return 0.0
    return float(10 ** (-error.sqnr_db / 20))


def _replace_weights(source: NodeValues, change: Callable[[Tensor], Tensor]) -> None:
    """Replace the parameters and buffers of a source by changed copies.

    The source shares the originals with its program.
    """
    module = source.module
    named = [*module.named_parameters(), *module.named_buffers()]
    for name, tensor in named:
        owner, _, attribute = name.rpartition(".")
        changed = change(tensor.detach())
        if isinstance(tensor, torch.nn.Parameter):
            changed = torch.nn.Parameter(changed, requires_grad=False)
        setattr(module.get_submodule(owner), attribute, changed)


def _move(value: Any) -> Any:
    """Move each number by one unit in the last place, alternately up and down."""
    if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
        return value
    parity = torch.arange(value.numel()).reshape(value.shape) % 2
    signs = 1 - 2 * parity
    step = torch.finfo(value.dtype).eps
    wide = value.to(torch.float64)
    return (wide * (1 + step * signs)).to(value.dtype)
