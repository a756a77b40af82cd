"""Ranges of dynamic sizes, which torch narrows when it has to decide something by a size.

A package may keep them (`edge.keep_ranges`), and the preprocess cache checks whether a call of a
backend narrowed any. `features/ranges` finds what narrowed them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv


@contextmanager
def kernel_guards(keep_ranges: bool) -> Iterator[None]:
    """Trace convolutions as if torch had neither oneDNN nor NNPACK, if ranges are to be kept.

    aten/src/ATen/native/Convolution.cpp asks in this order (`use_mkldnn`, `use_nnpack`) whether
    they take a convolution, and the answers narrow sizes. Without them, torch's own kernels are
    traced, which take tensors of any size.
    """
    if not keep_ranges:
        yield
        return
    with (
        torch.backends.mkldnn.flags(enabled=False),
        torch.backends.nnpack.flags(enabled=False),
    ):
        yield


def copy_ranges(programs: Iterable[ExportedProgram]) -> list[Any]:
    """Return the known ranges and replacements of the programs' sizes, to compare them later."""
    environments: dict[ShapeEnv, None] = {}
    for program in programs:
        for node in program.graph.find_nodes(op="placeholder"):
            for size in getattr(node.meta.get("val"), "shape", ()):
                if isinstance(size, torch.SymInt):
                    environments[size.node.shape_env] = None
    ranges = []
    for environment in environments:
        ranges.append((dict(environment.var_to_range), dict(environment.replacements)))
    return ranges
