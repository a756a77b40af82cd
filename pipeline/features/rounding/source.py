"""Runs a program with random rounding errors: how far can two correct implementations differ?

Every value that the program computes is changed at random by as much as its dtype rounds. Values
that are summed are changed by more, the longer the sum, and a share of quantized values is moved by
a step. Float weights, which no kernel derives from quantized ones, are left unchanged: there may be
many times more of them than of all other values, and the rounding of their sums is already covered
by that of the inputs.

The effect on the outputs holds for this program and these inputs: at any depth, with everything
that grows or cancels on the way.

Source: Monte Carlo arithmetic (D. S. Parker, 1997).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from pipeline.features.rounding.sums import find_sum
from pipeline.program.eager import Source
from pipeline.program.graph_runner import GraphRunner
from pipeline.program.graphs import iter_nodes
from pipeline.program.operators import base_name
from pipeline.program.quantized_values import dequantizes_constant

# Kernels may sum in the dtype itself: the result of ExecuTorch's portable linear, with 2048 float16
# or bfloat16 inputs, is off by 0.14 sqrt(k) eps. With this factor it is off by 0.17 sqrt(k) eps
# here.
_OF_SUMS = 0.3
# If all terms have the same sign, the last partial sums are all as large as the result, and so are
# their rounding errors.
_OF_RESULTS = 0.2
# The share of quantized values that is moved by a step. Two roundings of one value differ if it
# lies near the middle between steps. Ranges found at run time move those middles.
_MOVED, _MOVED_DYNAMIC = 0.01, 0.25
_SAMPLE = 256  # values of a large tensor to check before checking all of them
_MANY = 1 << 12  # values; fewer random numbers are quickly drawn
_TABLE = 1 << 21  # random numbers
_FEWEST = 2  # values of a tensor, however small: otherwise the effect of a step could be missed
# Operators made of several sums, which are rounded one by one.
_COMPOSED = frozenset(
    {
        "bilinear",
        "cosine_similarity",
        "einsum",
        "gru",
        "gru_cell",
        "inner",
        "lstm",
        "lstm_cell",
    }
    | {"rnn_relu", "rnn_relu_cell", "rnn_tanh", "rnn_tanh_cell", "tensordot"}
)


def round_sources(programs: Mapping[str, ExportedProgram]) -> dict[str, Source]:
    """Return programs that round every value differently, by method.

    They share the buffers that any of them changes.
    """
    return dict(RoundedSource.with_common_state(programs))


class RoundedSource(Source):
    """A source program that rounds every value differently, at random.

    Runs after `reseed` with the same seed are the same.
    """

    is_rounded = True

    def __init__(
        self, program: ExportedProgram, common: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__(_decompose_sums(program), common)
        self._generator = torch.Generator()
        self._random = Random()
        self.runner = GraphRunner(self.module, self._call_node)
        self._names: dict[Node, str] = {}

    def reseed(self, seed: int) -> None:
        self._generator.manual_seed(seed)
        self._random.seed(seed)

    def _call_node(
        self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call an operator, and round its result."""
        target: Any = node.target
        name = self._names.get(node)
        if name is None:
            name = self._names[node] = base_name(node)
        if dequantizes_constant(node, name):
            return target(*args, **kwargs)
        if name.startswith("choose_qparams"):
            args, kwargs = _without_least_step(target, args, kwargs)
        number, length = find_sum(name, args)
        terms = math.sqrt(length)
        if length > 1:
            coarser = _coarsening(args[number], node.meta.get("val"))
            rounded_argument = self._round(args[number], _OF_SUMS * terms * coarser)
            args = (*args[:number], rounded_argument, *args[number + 1 :])
        result = target(*args, **kwargs)
        if name.startswith("quantize"):
            if not _is_dynamic(node):
                return self._move(args[0], result, _MOVED)
            ends = _move_ends(args[0], result)
            return self._move(args[0], result, _MOVED_DYNAMIC) if ends is None else ends
        return self._round_result(result, (args, kwargs), max(1.0, _OF_RESULTS * terms))

    def _round_result(self, result: Any, arguments: Any, units: float) -> Any:
        """Round a tensor, or those in nested tuples, lists and dicts."""
        if isinstance(result, Tensor):
            # A value in the memory of an argument is a view of it, or was written in place.
            if _lies_in(arguments, _memory(result)):
                return result
            return self._round(result, units)
        if type(result) is tuple or type(result) is list:
            return type(result)(
                [self._round_result(value, arguments, units) for value in result]
            )
        return pytree.tree_map_only(
            Tensor, lambda value: self._round_result(value, arguments, units), result
        )

    def _round(self, value: Any, units: float) -> Any:
        """Change a floating-point tensor by up to this many units in the last place.

        Whole numbers, such as positions, are computed exactly.
        """
        if not _is_float(value) or _is_whole(value):
            return value
        wide = value.to(torch.promote_types(value.dtype, torch.float32))
        step = units * torch.finfo(value.dtype).eps
        noise = self._draw(value.shape).to(wide.dtype)
        return torch.addcmul(wide, wide, noise, value=step).to(value.dtype)

    def _draw(self, shape: Sequence[int]) -> Tensor:
        """Return random float32 numbers from -1 to 1, for many values a random part of a table.

        Drawing as many takes 10 times as long as rounding with them.
        """
        count = math.prod(shape)
        # Too small a choice of parts would round values alike.
        if not _MANY <= count <= _TABLE // 2:
            return torch.empty(shape).uniform_(-1, 1, generator=self._generator)
        start = self._random.randrange(_TABLE - count)
        return _draw_table()[start : start + count].view(shape)

    def _move(self, values: Tensor, quantized: Tensor, share: float) -> Tensor:
        """Move a share of quantized values by a step, except values that are zero or clipped."""
        draw = self._draw(quantized.shape)
        if not quantized.numel():
            return quantized
        least, greatest = quantized.aminmax()
        inside = (quantized > least) & (quantized < greatest) & (values != 0)
        distances = draw.abs()
        moves = inside & (distances <= share)
        # Looking for the fewest takes much longer than the rest, and is seldom needed.
        if moves.sum() < _FEWEST and inside.any():
            distances_inside = distances[inside]
            fewest = min(_FEWEST, len(distances_inside))
            share = max(share, distances_inside.kthvalue(fewest).values.item())
            moves = inside & (distances <= share)
        steps = moves * draw.sign()
        return quantized + steps.to(quantized.dtype)


@cache
def _draw_table() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.empty(_TABLE).uniform_(-1, 1, generator=generator)


def _move_ends(values: Tensor, quantized: Tensor) -> Tensor | None:
    """Move values that are all at the ends of the range a step inwards; return None for others.

    An input with one value throughout has such values. A kernel that rounds the zero point of the
    range differently moves all of them at once.
    """
    if not quantized.numel() or quantized.dtype.is_floating_point:
        return None
    least, greatest = quantized.aminmax()
    if ((quantized > least) & (quantized < greatest)).any():
        return None
    limits = torch.iinfo(quantized.dtype)
    steps = (quantized == limits.min).int() - (quantized == limits.max).int()
    return quantized + (steps * (values != 0)).to(quantized.dtype)


_DECOMPOSED: WeakKeyDictionary[ExportedProgram, ExportedProgram] = WeakKeyDictionary()


def _decompose_sums(program: ExportedProgram) -> ExportedProgram:
    if not any(base_name(node) in _COMPOSED for node in iter_nodes(program)):
        return program
    if program not in _DECOMPOSED:
        decompositions = {}
        for op, decomposition in torch.export.default_decompositions().items():
            if op.__name__.partition(".")[0] in _COMPOSED:
                decompositions[op] = decomposition
        _DECOMPOSED[program] = program.run_decompositions(decompositions)
    return _DECOMPOSED[program]


def _without_least_step(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of an operator that finds a scale, without the minimum scale they set.

    XNNPACK has no such minimum, and keeps what a program of small values rounds away.
    """
    names = [argument.name for argument in target._schema.arguments]
    if "eps" not in names:
        return args, kwargs
    place = names.index("eps")
    least = torch.finfo(torch.float32).tiny
    if place < len(args):
        return (*args[:place], least, *args[place + 1 :]), kwargs
    return args, {**kwargs, "eps": least}


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype.is_floating_point


def _coarsening(summed: Any, result: Any) -> float:
    """Return how much coarser the dtype of a sum is than the dtype of its terms.

    Under autocast, an operator casts its arguments itself, such as from float32 to the bfloat16
    that it sums in.
    """
    if not _is_float(summed):
        return 1.0
    eps = torch.finfo(summed.dtype).eps
    coarsening = 1.0
    for value in pytree.tree_leaves(result):
        if _is_float(value):
            coarsening = max(coarsening, torch.finfo(value.dtype).eps / eps)
    return coarsening


def _memory(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _is_whole(value: Tensor) -> bool:
    """Return whether all values of a tensor are whole numbers."""
    if value.numel() > _SAMPLE and value.is_contiguous():
        sample = value.view(-1)[:_SAMPLE]
        if not torch.equal(sample, sample.trunc()):
            return False
    return torch.equal(value, value.trunc())


def _lies_in(value: Any, memory: int) -> bool:
    """Return whether a tensor, or one in nested tuples, lists and dicts, lies in this memory."""
    if isinstance(value, Tensor):
        return _memory(value) == memory
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return False
    return any(_lies_in(nested, memory) for nested in value)


def _is_dynamic(node: Node) -> bool:
    """Return whether a node quantizes by a scale that is found at run time."""
    for argument in node.all_input_nodes:
        maker = argument.args[0] if argument.target is operator.getitem else argument
        if isinstance(maker, Node) and base_name(maker).startswith("choose_qparams"):
            return True
    return False
