"""Sketches of tensors: a few numbers from which the distance between two tensors can be estimated.

For a large model, memory can't hold all values of two runs, but it can hold their sketches. They
are the sketches of Alon, Matias and Szegedy (1996): projections onto random signs; the mean square
of the differences between two sketches estimates the square of the distance. Equal values have
equal sketches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

_PROJECTIONS = 8
_COLUMNS, _ROWS = 4096, 256  # of a block of values; blocks are projected one at a time
_SEED = 38


@dataclass(frozen=True)
class Sketch:
    """The sketch of a tensor's values, in reading order, whatever its shape.

    Attributes:
        count: the number of values.
        projections: sums of the finite values, each with a random sign.
        nonfinite: such sums over the positions of NaN, inf and -inf.
        norm: the square root of the sum of the squares of the finite values.
        uniform: whether all values are the same.
        geometry: for a view of a large weight, its place in the weight; the other fields except the
            count are then the weight's.
    """

    count: int
    dtype: torch.dtype
    projections: tuple[float, ...]
    nonfinite: tuple[float, ...]
    norm: float
    uniform: bool
    geometry: tuple[Any, ...] = ()

    @property
    def group(self) -> tuple[Any, ...]:
        """The key that two tensors must share for a distance between them to make sense."""
        return self.count, self.dtype, self.nonfinite, self.geometry

    @property
    def eps(self) -> float:
        """The relative spacing of the dtype's values, or float32's for integers."""
        inexact = self.dtype.is_floating_point or self.dtype.is_complex
        return float(torch.finfo(self.dtype if inexact else torch.float32).eps)


def sketch(tensor: Tensor) -> Sketch | None:
    """Return a tensor's sketch, or None if its values can't be read, as in a fake tensor."""
    threads = torch.get_num_threads()
    # Reading memory once gains nothing from threads, and loses time if other processes are busy.
    torch.set_num_threads(1)
    try:
        values = _flat_values(tensor.detach())
        return _project(values, tensor.numel(), tensor.dtype)
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    finally:
        torch.set_num_threads(threads)


def distance(sketch: Sketch, other_sketch: Sketch) -> float:
    """Estimate |a - b| / max(|a|, |b|) of two tensors; infinite if they can't be compared."""
    if sketch.group != other_sketch.group:
        return math.inf
    pairs = zip(sketch.projections, other_sketch.projections, strict=True)
    squares = sum((a - b) ** 2 for a, b in pairs)
    if squares == 0:
        return 0.0
    scale = max(sketch.norm, other_sketch.norm)
    if scale:
        return math.sqrt(squares / _PROJECTIONS) / scale
    return math.inf


def _flat_values(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise NotImplementedError(
            f"no sketch of a tensor on {tensor.device}, {tensor.layout}"
        )
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.is_complex():
        # `view_as_real` refuses a tensor whose conjugation is still pending.
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg().cpu().reshape(-1)


def _project(values: Tensor, count: int, dtype: torch.dtype) -> Sketch:
    projections = torch.zeros(_PROJECTIONS, dtype=torch.float64)
    nonfinite = torch.zeros(_PROJECTIONS, dtype=torch.float64)
    squares = 0.0
    size = _COLUMNS * _ROWS
    for number, start in enumerate(range(0, len(values), size)):
        # Rounding of long sums must stay far below that of float32 values.
        block = values[start : start + size].to(torch.float64)
        finite = block.isfinite()
        if not finite.all():
            # Distinct numbers, so that swapping NaN, inf and -inf changes the sketch.
            kinds = torch.where(block.isnan(), 1.0, torch.where(block > 0, 2.0, 3.0))
            kinds = torch.where(finite, 0.0, kinds.to(torch.float64))
            nonfinite += _project_block(kinds, number)
            block = torch.where(finite, block, 0.0)
        squares += float(block.dot(block))
        projections += _project_block(block, number)
    uniform = len(values) > 0 and bool((values == values[0]).all())
    sums = tuple(projections.tolist())
    places = tuple(nonfinite.tolist())
    return Sketch(count, dtype, sums, places, math.sqrt(squares), uniform)


def _project_block(block: Tensor, number: int) -> Tensor:
    """Return the projections of a block. The block's number determines the signs of its rows."""
    columns, rows = _signs()
    full = len(block) // _COLUMNS
    sums = block[: full * _COLUMNS].reshape(full, _COLUMNS) @ columns
    last_row = block[full * _COLUMNS :]
    last = (last_row @ columns[: len(last_row)]).unsqueeze(0)
    turned = rows.roll(number, 0)  # each block has another sign at the same position
    return (torch.cat([sums, last]) * turned[: full + 1]).sum(0)


@cache
def _signs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(_SEED)

    def draw(count: int) -> Tensor:
        bits = torch.randint(
            2, (count, _PROJECTIONS), generator=generator, device="cpu"
        )
        return bits.to(torch.float64) * 2 - 1

    return draw(_COLUMNS), draw(_ROWS + 1)
