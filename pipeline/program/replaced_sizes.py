"""Preserves the original symbols of input sizes that an export found equal to other sizes.

If an export finds that two sizes are equal, such as those of two inputs with the same `Dim`, the
shape environment replaces one symbol by the other, but the size itself keeps its original symbol.
torch's archives keep only the replacement. Decomposing reads a size from the input that has the
symbol itself, so without the originals a program from an archive would be lowered to other bytes
than the same program in memory. An archive therefore has an extra file for each such program: for
each input, and each position in its sizes and strides, it maps replacements to original symbols.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sympy
import torch
from torch import SymInt, Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from pipeline.program.size_expressions import is_backed_symbol

# For each input and position: the original symbols of a size, keyed by their replacements.
ReplacedSizes = Mapping[str, Mapping[str, Mapping[str, str]]]


def read_replaced_sizes(
    program: ExportedProgram,
) -> dict[str, dict[str, dict[str, str]]]:
    """Return the replaced symbols of a program's input sizes, in the form of `ReplacedSizes`."""
    sizes: dict[str, dict[str, dict[str, str]]] = {}
    for node, tensor in _iter_inputs(program):
        places = {}
        for place, size in enumerate(_list_sizes(tensor)):
            symbols = _find_replaced(size) if isinstance(size, SymInt) else {}
            if symbols:
                places[str(place)] = symbols
        if places:
            sizes[node.name] = places
    return sizes


def _iter_inputs(program: ExportedProgram) -> Iterator[tuple[Node, Tensor]]:
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            yield node, value


def _list_sizes(tensor: Tensor) -> list[Any]:
    """Return the sizes of a tensor, then its strides."""
    return [*tensor.shape, *tensor.stride()]


def _find_replaced(size: SymInt) -> dict[str, str]:
    """Return the original symbols of a size, keyed by their replacements.

    Return {} if nothing was replaced, or if the originals can't be restored from the replacements.
    """
    node = size.node
    first_symbols = {}
    for symbol in node._expr.free_symbols:
        replacement = node.shape_env.replacements.get(symbol)
        if replacement is not None:
            first_symbols[replacement] = symbol
    if not first_symbols or node.expr.xreplace(first_symbols) != node._expr:
        return {}
    names = {str(symbol): str(first) for symbol, first in first_symbols.items()}
    if not all(map(is_backed_symbol, [*names, *names.values()])):
        return {}
    return names


def write_replaced_sizes(program: ExportedProgram, sizes: ReplacedSizes) -> None:
    """Restore the original symbols of a loaded program's inputs.

    Raises ValueError if the program doesn't have these sizes.
    """
    inputs = dict(_iter_inputs(program))
    by_name = {node.name: node for node in inputs}
    for name, places in sizes.items():
        if name not in by_name:
            raise ValueError(f"replaces sizes of '{name}', which is not an input")
        node = by_name[name]
        tensor = inputs[node]
        parts = _list_sizes(tensor)
        for place, symbols in places.items():
            number = int(place)
            if number >= len(parts) or not isinstance(parts[number], SymInt):
                raise ValueError(
                    f"replaces size {place} of '{name}', which is not a symbol"
                )
            parts[number] = _restore(parts[number], symbols)
        rank = tensor.dim()
        with tensor.fake_mode:  # type: ignore[attr-defined]
            node.meta["val"] = torch.empty_strided(
                parts[:rank], parts[rank:], dtype=tensor.dtype, device=tensor.device
            )


def _restore(size: SymInt, first_symbols: Mapping[str, str]) -> SymInt:
    """Return a size with its original symbols, which its shape environment replaces."""
    node = size.node
    symbols = {str(symbol): symbol for symbol in node.expr.free_symbols}
    replaced = {}
    for name, first_name in first_symbols.items():
        if name not in symbols:
            raise ValueError(f"replaces '{name}', which is not part of the size")
        first = sympy.Symbol(first_name, positive=True, integer=True)
        _add_replacement(node.shape_env, first, symbols[name])
        replaced[symbols[name]] = first
    return SymInt(SymNode(node.expr.xreplace(replaced), node.shape_env, int, node.hint))


def _add_replacement(
    shapes: ShapeEnv, first: sympy.Symbol, symbol: sympy.Symbol
) -> None:
    """Make a shape environment replace `first` by `symbol`, as `ShapeEnv._set_replacement` does.

    That method would also deduce facts about each symbol from the other, which the export has
    already done.
    """
    if shapes.replacements.get(first) == symbol:
        return
    if first in shapes.var_to_range:
        raise ValueError(f"replaces '{first}', which the program has")
    shapes.var_to_range[first] = shapes.var_to_range[symbol]
    if symbol in shapes.backed_var_to_val:
        shapes.backed_var_to_val[first] = shapes.backed_var_to_val[symbol]
    shapes.replacements[first] = symbol
    shapes._replacements_version_counter += 1
    shapes._update_version_counter()
