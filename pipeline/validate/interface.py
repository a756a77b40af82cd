"""Compares the inputs and outputs that a package declares with those of its source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from pipeline.devices.interface import DeclaredTensor
from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import Shapes
from pipeline.program.signature import bounds, expression, flatten, signature

# A size whose range was narrowed by lowering (`store.compiled.NARROWED_SIZE`),
# and the remedy.
NarrowedInput = tuple[dict[str, Any], str]


def compare_declared(
    kind: str,
    declared: Sequence[DeclaredTensor | None],
    expected: Sequence[tuple[str, Any]],
    program: ExportedProgram,
) -> Iterator[str]:
    """Yield how declared inputs or outputs differ from the source's names and (fake) values."""
    if len(declared) != len(expected):
        hint = ""
        if kind == "output" and len(declared) > len(expected):
            hint = "; parameters that a program changes are returned before its results"
        yield f"declares {len(declared)} {kind}s, must be {len(expected)}{hint}"
        return
    for tensor, (name, value) in zip(declared, expected, strict=True):
        if isinstance(value, torch.Tensor) and tensor is not None:
            yield from _compare_tensor(name, kind, tensor, value, program)
        elif isinstance(value, torch.Tensor):
            yield f"{name} is declared as something other than a tensor"
        elif tensor is not None:
            yield f"{name} is declared as a tensor"


def _compare_tensor(
    name: str,
    kind: str,
    declared: DeclaredTensor,
    expected: torch.Tensor,
    program: ExportedProgram,
) -> Iterator[str]:
    if declared.dtype != expected.dtype:
        yield f"{name} is declared with dtype {declared.dtype}, must be {expected.dtype}"
        return
    if len(declared.sizes) != expected.ndim:
        yield f"{name} is declared with rank {len(declared.sizes)}, must be {expected.ndim}"
        return
    sizes = zip(declared.sizes, expected.shape, strict=True)
    for dimension, (size, expected_size) in enumerate(sizes):
        if fault := _size_difference(size, expected_size, kind, program):
            yield f"{name}: {fault} at dimension {dimension}"


def _size_difference(
    declared: int, expected: int | torch.SymInt, kind: str, program: ExportedProgram
) -> str | None:
    """Describe how a declared size differs from the source's, or return None if it fits.

    A dynamic size is declared by its upper bound, so the package must declare at least the source's
    bound. An output's size follows from the inputs' and is not compared.
    """
    if not isinstance(expected, torch.SymInt):
        if declared == expected:
            return None
        return f"declares size {declared}, must be {expected}"
    # It follows from the inputs' sizes, which are compared.
    if kind == "output":
        return None
    greatest = bounds(program, expression(expected))[1]
    if greatest is None:
        return (
            f"declares room for size {declared}, but the source has no limit: without a maximum "
            "in the export, ExecuTorch plans memory for the example's size; set a maximum"
        )
    if declared >= greatest:
        return None
    return f"declares room for size {declared}, but the source accepts up to {greatest}"


def find_unlisted(
    program: ExportedProgram, inputs: InputSet, shapes: Shapes | None
) -> Iterator[str]:
    """Yield a sentence if the shapes of an input set are not among those that the package lists."""
    if not shapes:
        return
    values = zip(signature(program), flatten(program, inputs), strict=True)
    shapes_by_name = {
        argument.name: list(value.shape)
        for argument, value in values
        if isinstance(value, torch.Tensor)
    }
    for listed in zip(*shapes.values(), strict=True):
        pairs = zip(shapes, listed, strict=True)
        if all(list(shape) == shapes_by_name[name] for name, shape in pairs):
            return
    shown = ", ".join(f"{name} {shapes_by_name[name]}" for name in shapes)
    yield f"{shown} is not among the package's enumerated_shapes; list it there"
