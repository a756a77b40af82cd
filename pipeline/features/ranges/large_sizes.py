"""Reports dynamic sizes that no package can hold: its tensors have int32 sizes.

ExecuTorch writes the greatest size of each dimension, and fails in the serializer of the first file
it writes, which doesn't know the names of sizes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from pipeline.program.graphs import iter_nodes
from pipeline.program.operators import node_label
from pipeline.program.signature import iter_dynamic_sizes, signature
from pipeline.store.errors import PipelineError, listed

GREATEST = 2**31 - 1


@contextmanager
def explain_large_sizes(programs: Mapping[str, ExportedProgram]) -> Iterator[None]:
    """Replace the error of a serializer that a size is too large for with a PipelineError."""
    try:
        yield
    except (OverflowError, TypeError, subprocess.CalledProcessError) as error:
        faults = []
        for method, program in programs.items():
            faults += [f"{method}: {fault}" for fault in find_large_sizes(program)]
        is_number = isinstance(error, TypeError) and "bad number" not in str(error)
        if not faults or is_number:
            raise
        raise PipelineError("; ".join(faults)) from error


def find_large_sizes(program: ExportedProgram) -> Iterator[str]:
    """Yield a sentence for each size from which a program computes sizes beyond int32."""
    sizes = list(iter_dynamic_sizes(signature(program)))
    names = {size.node.expr: name for name, size in reversed(sizes)}
    for symbol, (limit, node) in _find_limits(program).items():
        dimensions = sorted(
            name for size, name in names.items() if symbol in size.free_symbols
        )
        if node.op == "call_function":
            fault = f"can make {node_label(node)} return a size over {GREATEST}"
        else:
            fault = f"may be larger than {GREATEST}"
        if dimensions:
            remedy = f"set `max={limit}` or less of its torch.export.Dim"
        else:
            remedy = f"bound it in the model, torch._check(size <= {limit})"
        where = listed(dimensions) or f"the size {symbol}, which the model computes,"
        yield f"{where} {fault}, the greatest in a package (int32); {remedy}"


def _find_limits(program: ExportedProgram) -> dict[sympy.Symbol, tuple[int, Node]]:
    """Return limits of symbols that keep all sizes of a program in range.

    Each comes with the node that requires it. If a size depends on several symbols, the first of
    them is limited.
    """
    limits: dict[sympy.Symbol, tuple[int, Node]] = {}
    large = sorted(
        _iter_large(program), key=lambda pair: len(pair[1].node.expr.free_symbols)
    )
    for node, size in large:
        expression = size.node.expr
        ranges = size.node.shape_env.var_to_range
        greatest = {}
        for symbol in sorted(expression.free_symbols, key=str):
            if symbol in limits:
                greatest[symbol], _ = limits[symbol]
            else:
                greatest[symbol] = int(ranges[symbol].upper)
        # A limit set for an earlier size may be enough for this one too.
        if expression.subs(greatest) > GREATEST:
            first, *following = greatest
            alone = expression.subs({symbol: greatest[symbol] for symbol in following})
            limits[first] = _find_limit(alone, first), node
    return limits


def _iter_large(program: ExportedProgram) -> Iterator[tuple[Node, torch.SymInt]]:
    for node in iter_nodes(program):
        for value in pytree.tree_leaves(node.meta.get("val")):
            for size in value.shape if isinstance(value, torch.Tensor) else ():
                if isinstance(size, torch.SymInt) and _find_upper(size) > GREATEST:
                    yield node, size


def _find_upper(size: torch.SymInt) -> int:
    """Return the greatest value of a size, or 0 if it has no limit.

    For a size without a limit, the example's size counts.
    """
    upper = size.node.shape_env.bound_sympy(size.node.expr).upper
    return int(upper) if upper.is_Integer else 0


def _find_limit(expression: sympy.Expr, symbol: sympy.Symbol) -> int:
    """Return the greatest value of a symbol that keeps an increasing expression within int32.

    The value is found by bisection.
    """
    low, high = 0, GREATEST
    while low < high:
        middle = (low + high + 1) // 2
        if expression.subs(symbol, middle) <= GREATEST:
            low = middle
        else:
            high = middle - 1
    return low
