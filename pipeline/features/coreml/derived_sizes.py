"""Ranges of derived sizes, such as 8*n for a multiple, in programs read from an archive.

coremltools takes only sizes that have a range. A program in memory has ranges for derived sizes,
but torch fails to decompose a loaded program that has any, so loading drops them
(`forget_derived_sizes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils._sympy.value_ranges import bound_sympy

from pipeline.program.signature import expression


@contextmanager
def with_derived_ranges(programs: Iterable[ExportedProgram]) -> Iterator[None]:
    """Give each expression in programs' input sizes a range, within the context.

    The range is computed from those of its symbols.
    """
    added = []
    for program in programs:
        ranges = program.range_constraints
        for size in _input_sizes(program):
            has_ranges = size.free_symbols <= ranges.keys()
            if not size.is_Symbol and size not in ranges and has_ranges:
                added.append((ranges, size))
                ranges[size] = bound_sympy(
                    size, {s: ranges[s] for s in size.free_symbols}
                )
    try:
        yield
    finally:
        for ranges, size in added:
            del ranges[size]


def _input_sizes(program: ExportedProgram) -> Iterator[sympy.Expr]:
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                yield expression(size)
