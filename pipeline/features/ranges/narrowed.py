"""Finds sizes that a package was lowered for in a smaller range than its source accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.export import ExportedProgram

from pipeline.program.inputs import InputSet
from pipeline.program.signature import flatten, signature
from pipeline.validate.interface import NarrowedInput


class NarrowedSizes:
    """The sizes of a method that lowering narrowed, each with a remedy."""

    def __init__(self, narrowed: Sequence[NarrowedInput]) -> None:
        self._narrowed = narrowed

    def add_remedy(self, fault: str) -> str:
        """Return a sentence of `compare_declared` with the remedy for a narrowed size added."""
        for size, remedy in self._narrowed:
            name, _, dimension = size["size"].removesuffix("]").partition(".shape[")
            is_of_input = fault.startswith(f"input '{name}': ")
            if is_of_input and fault.endswith(f" at dimension {dimension}"):
                return f"{fault}; {remedy}"
        return fault

    def find_outside(self, program: ExportedProgram, inputs: InputSet) -> Iterator[str]:
        """Yield a sentence for each size of an input set that a package was not lowered for.

        A runtime may accept it anyway, since a package declares only the greatest sizes.
        """
        if not self._narrowed:
            return
        sizes = _sizes_of(program, inputs)
        for limits, remedy in self._narrowed:
            name = limits["size"]
            least, greatest = limits["lowered"]
            size = sizes.get(name)
            if size is None:
                continue
            if greatest is None:
                words = f"{least} or more"
                is_outside = size < least
            else:
                words = f"{least} to {greatest}"
                is_outside = not least <= size <= greatest
            if is_outside:
                yield f"{name} is {size}, but it is lowered for {words}; {remedy}"


def _sizes_of(program: ExportedProgram, inputs: InputSet) -> dict[str, int]:
    """Return the integers of an input set, and its sizes by names such as `x.shape[0]`."""
    sizes: dict[str, int] = {}
    values = flatten(program, inputs)
    for argument, value in zip(signature(program), values, strict=True):
        if isinstance(value, torch.Tensor):
            for dimension, size in enumerate(value.shape):
                sizes[f"{argument.name}.shape[{dimension}]"] = size
        elif isinstance(value, int):
            sizes[argument.name] = value
    return sizes
