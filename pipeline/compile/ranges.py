"""Protect and compare ranges of dynamic sizes, which torch narrows when a decision needs a size.

A package may keep its ranges (`edge.keep_ranges`), and the preprocess cache asks whether a call of
a backend narrowed any. `features/ranges` reports what narrowed them.
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
    """With `keep_ranges`, trace convolutions as if torch had neither oneDNN nor NNPACK.

    aten/src/ATen/native/Convolution.cpp asks whether it can use them, in this order (`use_mkldnn`,
    `use_nnpack`), and each answer narrows sizes. Without them, torch's own kernels are traced,
    which take tensors of any size.
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
    """Return a copy of the ranges and replacements of sizes in programs, to detect changes."""
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
