"""Compares the inputs and outputs that a package declares with those of its source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from pipeline.devices.interface import DeclaredTensor
from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import Shapes
from pipeline.program.signature import bounds, expression, flatten, signature
from pipeline.store.remedies import range_remedy


@dataclass(frozen=True)
class NarrowedSize:
    """A size of an input, such as `x.shape[0]`, that a package was lowered for less of.

    Attributes:
        lowered: the least and the greatest size; None is no limit.
        operator: the one that narrowed it; "" where it is not known.
        keeps: whether `keep_ranges` was set.
    """

    size: str
    lowered: tuple[int, int | None]
    operator: str
    keeps: bool

    @property
    def remedy(self) -> str:
        return range_remedy(self.operator, self.lowered, self.keeps)


def compare_declared(
    kind: str,
    declared: Sequence[DeclaredTensor | None],
    expected: Sequence[tuple[str, Any]],
    program: ExportedProgram,
) -> Iterator[str]:
    """Yield how declared inputs or outputs differ from the source's names and (fake) values."""
    if len(declared) != len(expected):
        more = kind == "output" and len(declared) > len(expected)
        why = "; parameters that a program changes are returned before its results" if more else ""
        yield f"declares {len(declared)} {kind}s, must be {len(expected)}{why}"
        return
    for tensor, (name, value) in zip(declared, expected, strict=True):
        if not isinstance(value, torch.Tensor) or tensor is None:
            if isinstance(value, torch.Tensor) or tensor is not None:
                yield f"{name} is declared as {'no' if tensor is None else 'a'} tensor"
        elif tensor.dtype != value.dtype:
            yield f"{name} is declared with dtype {tensor.dtype}, must be {value.dtype}"
        elif len(tensor.sizes) != value.ndim:
            yield f"{name} is declared with rank {len(tensor.sizes)}, must be {value.ndim}"
        else:
            for dimension, (size, wanted) in enumerate(zip(tensor.sizes, value.shape, strict=True)):
                if what := _size_difference(size, wanted, kind, program):
                    yield f"{name}: {what} at dimension {dimension}"


def _size_difference(
    declared: int, wanted: int | torch.SymInt, kind: str, program: ExportedProgram
) -> str | None:
    """Describe how a size differs; None where it doesn't.

    A dynamic size is declared as its upper bound, so a package declares at least the source's; an
    output's follows from the inputs'.
    """
    if not isinstance(wanted, torch.SymInt):
        return None if declared == wanted else f"declares size {declared}, must be {wanted}"
    greatest = bounds(program, expression(wanted))[1]
    if kind == "output" or (greatest is not None and declared >= greatest):
        return None
    if greatest is not None:
        return f"declares room for size {declared}, the source takes up to {greatest}"
    return (
        f"declares room for size {declared}, the source has no limit: ExecuTorch plans memory for "
        "the size in the example where the export gives no maximum, so give one"
    )


def add_range_remedy(what: str, narrowed: Sequence[NarrowedSize]) -> str:
    """Return a sentence of `compare_declared` with what to do about a size that was narrowed."""
    for size in narrowed:
        name, _, dimension = size.size.removesuffix("]").partition(".shape[")
        if what.startswith(f"input '{name}': ") and what.endswith(f" at dimension {dimension}"):
            return f"{what}; {size.remedy}"
    return what


def find_outside(
    program: ExportedProgram, inputs: InputSet, narrowed: Sequence[NarrowedSize]
) -> Iterator[str]:
    """Yield a sentence for each size of an input set that a package was not lowered for.

    A runtime may take it all the same, since a package declares only the greatest sizes.
    """
    if not narrowed:
        return
    sizes: dict[str, int] = {}
    for argument, value in zip(signature(program), flatten(program, inputs), strict=True):
        if isinstance(value, torch.Tensor):
            sizes |= {f"{argument.name}.shape[{n}]": size for n, size in enumerate(value.shape)}
        elif isinstance(value, int):
            sizes[argument.name] = value
    for limits in narrowed:
        least, greatest = limits.lowered
        size = sizes.get(limits.size)
        if size is not None and (size < least or (greatest is not None and size > greatest)):
            words = f"{least} or more" if greatest is None else f"{least} to {greatest}"
            yield f"{limits.size} is {size}, and it is lowered for {words}; {limits.remedy}"


def find_unlisted(
    program: ExportedProgram, inputs: InputSet, shapes: Shapes | None
) -> Iterator[str]:
    """Yield a sentence for an input set whose shapes are not among those that a package lists."""
    if not shapes:
        return
    values = zip(signature(program), flatten(program, inputs), strict=True)
    given = {a.name: list(value.shape) for a, value in values if isinstance(value, torch.Tensor)}
    size = tuple(tuple(given[name]) for name in shapes)
    if size not in {tuple(map(tuple, listed)) for listed in zip(*shapes.values(), strict=True)}:
        shown = ", ".join(f"{name} {given[name]}" for name in shapes)
        yield f"{shown} is not among the package's enumerated_shapes; list it there"
