"""Ranges of dynamic sizes: the ranges that lowering narrows, and the operator responsible.

torch narrows the range of a size if it has to decide something based on the size. Retracing a
convolution asks whether oneDNN would run it, which depends on the number of elements, and otherwise
whether NNPACK would, which takes batches of 16 or more. XNNPACK's passes retrace each Conv1d as a
Conv2d, and the method is emitted for the sizes that remain.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from pipeline.program.graphs import NodePlaces
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import node_label
from pipeline.program.patching import wrapped
from pipeline.program.signature import signature

Range = tuple[int, int | None]  # the least and the greatest size; None for no limit
# The node that last narrowed a symbol's range, or None if it wasn't in a graph.
Narrowing = Mapping[tuple[ShapeEnv, sympy.Symbol], Node | None]
# `find_narrowed` without its first two arguments.
FindNarrowed = Callable[..., list[dict[str, Any]]]


def find_narrowed(
    before: Mapping[str, Mapping[str, Range]],
    narrowing: Narrowing,
    method: str,
    lowered: InputSizes,
    places: NodePlaces,
    nodes: Sequence[Node] = (),
) -> list[dict[str, Any]]:
    """Return the sizes of a lowered method whose ranges have narrowed.

    Args:
        before: the ranges of sizes before lowering, by method and size.
        narrowing: the nodes that have narrowed them since.
        nodes: the nodes of the source program by place, if available.
    """
    narrowed_sizes = []
    for name, now in lowered.measure().items():
        range_before = before[method][name]
        if now != range_before:
            node = _find_narrowing(narrowing, lowered.sizes[name])
            narrowed = _describe(name, range_before, now, node, places)
            if nodes and narrowed["place"] is not None:
                narrowed["operator"] = node_label(nodes[narrowed["place"]])
            narrowed_sizes.append(narrowed)
    return narrowed_sizes


def _find_narrowing(narrowing: Narrowing, size: int | torch.SymInt) -> Node | None:
    """Return the node that narrowed a size, or None if it wasn't in a graph."""
    if isinstance(size, torch.SymInt):
        environment = size.node.shape_env
        for symbol in size.node.expr.free_symbols:
            node = narrowing.get((environment, symbol))
            if node is not None:
                return node
    return None


def _describe(
    name: str, before: Range, now: Range, node: Node | None, places: NodePlaces
) -> dict[str, Any]:
    return {
        "size": name,
        "source": before,
        "lowered": now,
        "operator": "" if node is None else node_label(node),
        "module": "" if node is None else innermost_module(node),
        "place": None if node is None else places.find(node),
    }


@contextmanager
def record_ranges(programs: Mapping[str, ExportedProgram]) -> Iterator[FindNarrowed]:
    """Record the nodes that narrow methods' size ranges during lowering and emission.

    Yields `find_narrowed` without its first two arguments.
    """
    before = {name: InputSizes(program).measure() for name, program in programs.items()}
    with _record_narrowing() as narrowing:
        yield partial(find_narrowed, before, narrowing)


@contextmanager
def _record_narrowing() -> Iterator[Narrowing]:
    """Record which nodes narrow ranges within the context."""
    narrowing: dict[tuple[ShapeEnv, sympy.Symbol], Node | None] = {}

    def update(
        original: Any,
        environment: ShapeEnv,
        symbol: sympy.Symbol,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        before = environment.var_to_range.get(symbol)
        original(environment, symbol, *args, **kwargs)
        if before is not None and environment.var_to_range[symbol] != before:
            narrowing[environment, symbol] = _find_traced_node()

    with wrapped(ShapeEnv, "_update_var_to_range", update):
        yield narrowing


def _find_traced_node() -> Node | None:
    """Return the node that a torch interpreter up the call stack is running, or None."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "run_node" and isinstance(
            node := frame.f_locals.get("n"), Node
        ):
            return node
        frame = frame.f_back  # type: ignore[assignment]
    return None


class InputSizes:
    """The sizes and ints that a program takes; a lowered program's sizes outlive its emission."""

    def __init__(self, program: ExportedProgram) -> None:
        self.sizes = dict(_iter_sizes(program))
        self._constraints = dict(program.range_constraints)

    def measure(self) -> dict[str, Range]:
        """Return the current range of each size; lowering also narrows those of the source."""
        return {name: self._measure(size) for name, size in self.sizes.items()}

    def _measure(self, size: int | torch.SymInt) -> Range:
        if not isinstance(size, torch.SymInt):
            return size, size
        expression = size.node.expr
        limits = size.node.shape_env.bound_sympy(expression)
        if (constraint := self._constraints.get(expression)) is not None:
            limits = limits & constraint
        lower = limits.lower
        upper = limits.upper
        return int(lower) if lower.is_Integer else 0, int(
            upper
        ) if upper.is_Integer else None


def _iter_sizes(program: ExportedProgram) -> Iterator[tuple[str, int | torch.SymInt]]:
    for argument in signature(program):
        value = argument.value
        if isinstance(value, torch.SymInt):
            yield argument.name, value
        elif isinstance(value, torch.Tensor):
            yield from (
                (f"{argument.name}.shape[{n}]", size)
                for n, size in enumerate(value.shape)
            )
