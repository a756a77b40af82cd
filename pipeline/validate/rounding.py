"""Runs a program with every value rounded anew: how far may two right implementations be apart?

Every value that the program computes is changed at random by as much as its dtype rounds; values
that are summed by more, the longer the sum; and a share of quantized values is moved by a step.
What that does to the outputs holds for this program and these inputs: at any depth, with whatever
grows or cancels on the way.
Source: Monte Carlo arithmetic (D. S. Parker, 1997).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from pipeline.program.eager import Source
from pipeline.program.graphs import iter_nodes
from pipeline.program.operators import base_name
from pipeline.validate.sums import find_sum

# Kernels may sum in the dtype itself: ExecuTorch's portable linear, of 2048 float16 or bfloat16
# inputs, is off by 0.14 sqrt(k) eps of what it gives. With this factor it is 0.17 sqrt(k) eps here.
_OF_SUMS = 0.3
# Where all terms have one sign, the last of the partial sums are all as large as the result, and so
# is what each of them is rounded by.
_OF_RESULTS = 0.2
# The share of quantized values that is moved by a step. Two roundings of one value differ where it
# lies near the middle between steps. Ranges that are found as values come move those middles.
_MOVED, _MOVED_DYNAMIC = 0.01, 0.25
_FEWEST = 2  # values of a tensor, however small, or what one step does would go unseen
_QUANTIZING = ("quantize_", "dequantize_", "choose_qparams_")
# Operators of several sums on the way, which are rounded one by one.
_COMPOSED = frozenset(
    {"bilinear", "cosine_similarity", "einsum", "gru", "gru_cell", "inner", "lstm", "lstm_cell"}
    | {"rnn_relu", "rnn_relu_cell", "rnn_tanh", "rnn_tanh_cell", "tensordot"}
)


class RoundedSource(Source):
    """A source program that rounds every value anew, at random; runs after `reseed` are the same
    for the same seed."""

    def __init__(
        self, program: ExportedProgram, common: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__(_decompose_sums(program), common)
        self._generator = torch.Generator()

    def reseed(self, seed: int) -> None:
        self._generator.manual_seed(seed)

    def _call_module(self, leaves: list[Any]) -> list[Any]:
        rounder = _Rounder(self._module, self._generator)
        return pytree.tree_leaves(rounder.run(*leaves, enable_io_processing=False))


class _Rounder(Interpreter):
    """Runs through a graph, and those of its control flow, and rounds what each node gives."""

    def __init__(self, module: GraphModule, generator: torch.Generator) -> None:
        super().__init__(module)
        self._generator = generator

    def run_node(self, n: Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if base_name(n).startswith("choose_qparams"):
            args, kwargs = _without_least_step(n.target, args, kwargs)
        number, length = find_sum(base_name(n), args)
        many = math.sqrt(length)
        if length > 1:
            coarser = _coarsening(args[number], n.meta.get("val"))
            rounded_argument = self._round(args[number], _OF_SUMS * many * coarser)
            args = (*args[:number], rounded_argument, *args[number + 1 :])
        with self._set_current_node(n):
            result = self.call_function(n.target, args, kwargs)  # type: ignore[arg-type]
        if base_name(n).startswith("quantize"):
            return self._move(args[0], result, _MOVED_DYNAMIC if _is_dynamic(n) else _MOVED)
        units = max(1.0, _OF_RESULTS * many)
        given_memory = {_memory(v) for v in pytree.tree_leaves((args, kwargs))}
        # What lies in the memory of an argument is a view of it, or was written in place.
        return pytree.tree_map(
            lambda v: v if _memory(v) in given_memory else self._round(v, units), result
        )

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a body of control flow as a function that rounds as well."""
        value = super().get_attr(target, args, kwargs)
        if isinstance(value, GraphModule):
            return _Rounder(value, self._generator).run
        return value

    def _round(self, value: Any, units: float) -> Any:
        """Change a floating-point tensor by up to so many units in the last place.

        Whole numbers, such as positions, are computed exactly.
        """
        if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
            return value
        if torch.equal(value, value.trunc()):
            return value
        wide = torch.promote_types(value.dtype, torch.float32)
        step = units * torch.finfo(value.dtype).eps
        noise = torch.empty(value.shape, dtype=wide)
        noise.uniform_(1 - step, 1 + step, generator=self._generator)
        return noise.mul_(value).to(value.dtype)

    def _move(self, values: Tensor, quantized: Tensor, share: float) -> Tensor:
        """Move a share of quantized values by a step, but for what is zero or cut off."""
        draw = torch.empty(quantized.shape).uniform_(-1, 1, generator=self._generator)
        if not quantized.numel():
            return quantized
        inside = (quantized > quantized.min()) & (quantized < quantized.max()) & (values != 0)
        nearest = draw.abs()[inside].sort().values[:_FEWEST]
        moves = inside & (draw.abs() <= max(share, nearest.max().item() if len(nearest) else 0.0))
        return quantized + (moves * draw.sign()).to(quantized.dtype)


def _decompose_sums(program: ExportedProgram) -> ExportedProgram:
    if not any(base_name(node) in _COMPOSED for node in iter_nodes(program)):
        return program
    decompositions = torch.export.default_decompositions()
    return program.run_decompositions(
        {
            op: decomposition
            for op, decomposition in decompositions.items()
            if op.__name__.partition(".")[0] in _COMPOSED
        }
    )


def _without_least_step(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments of an operator that finds a scale, without the least one that they allow:
    XNNPACK knows none, and keeps what a program of small values rounds away."""
    names = [argument.name for argument in target._schema.arguments]
    if "eps" not in names:
        return args, kwargs
    place = names.index("eps")
    least = torch.finfo(torch.float32).tiny
    if place < len(args):
        return (*args[:place], least, *args[place + 1 :]), kwargs
    return args, {**kwargs, "eps": least}


def _coarsening(summed: Any, result: Any) -> float:
    """Return how much coarser the dtype of a sum is than that of what is summed. Under autocast an
    operator casts what it is given itself, as from float32 to the bfloat16 that it sums in."""
    if not isinstance(summed, Tensor) or not summed.dtype.is_floating_point:
        return 1.0
    values = pytree.tree_leaves(result)
    dtypes = {v.dtype for v in values if isinstance(v, Tensor) and v.dtype.is_floating_point}
    eps = torch.finfo(summed.dtype).eps
    return max([1.0, *(torch.finfo(dtype).eps / eps for dtype in dtypes)])


def _memory(value: Any) -> int | None:
    if isinstance(value, Tensor):
        return value.untyped_storage().data_ptr()
    return None


def _is_dynamic(node: Node) -> bool:
    """Tell whether a node quantizes by a scale that is found as values come."""
    makers = (i.args[0] if i.target is operator.getitem else i for i in node.all_input_nodes)
    return any(isinstance(m, Node) and base_name(m).startswith("choose_qparams") for m in makers)


def is_quantized(program: ExportedProgram) -> bool:
    """Tell whether a program quantizes values or computes with quantized ones."""
    return any(base_name(node).startswith(_QUANTIZING) for node in iter_nodes(program))


def finds_ranges(program: ExportedProgram) -> bool:
    """Tell whether a program quantizes by ranges that it finds as values come."""
    return any(base_name(node).startswith("choose_qparams") for node in iter_nodes(program))


def float_dtypes(program: ExportedProgram) -> list[str]:
    """Return the floating-point dtypes in which a program computes, the coarsest first."""
    values = (
        value
        for node in iter_nodes(program)
        if node.op == "call_function"
        for value in pytree.tree_leaves(node.meta.get("val"))
    )
    dtypes = {v.dtype for v in values if isinstance(v, Tensor) and v.dtype.is_floating_point}
    coarsest_first = sorted(dtypes, key=lambda dtype: -torch.finfo(dtype).eps)
    return [str(dtype).removeprefix("torch.") for dtype in coarsest_first]
