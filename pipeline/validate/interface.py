"""Compares the inputs and outputs that a package declares with those of its source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from pipeline.devices.interface import DeclaredTensor
from pipeline.program.signature import bounds, expression


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
