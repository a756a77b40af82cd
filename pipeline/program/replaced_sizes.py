"""Keep the sizes that inputs had before an export found them equal to others.

Where an export finds that two sizes are one, such as those of two inputs with one `Dim`, the
environment of shapes replaces a symbol by another, and a size still bears its first one. torch's
archives have the second one alone. Decomposing reads a size from the input that bears the symbol
itself, so a program from an archive is lowered to other bytes than the same program in memory. So
an archive has an extra file for each such program: by input, and by the place in its sizes and
strides, the first symbol by the one that replaced it.
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

# By input and place, the first symbol of a size by the one that replaced it.
ReplacedSizes = Mapping[str, Mapping[str, Mapping[str, str]]]


def read_replaced_sizes(
    program: ExportedProgram,
) -> dict[str, dict[str, dict[str, str]]]:
    """Return the symbols of a program's inputs that others replaced."""
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
    """Return the symbols of a size's expression by those that replaced them; {} where these can't
    be told apart again."""
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
    """Give the inputs of a loaded program their first symbols again. Raises ValueError for sizes
    that the program does not have."""
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
    """Return a size that bears its first symbols, which its environment replaces."""
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
    """Let an environment of shapes replace a symbol, as `ShapeEnv._set_replacement` does: that also
    looks for what the two symbols tell about each other, which the export has done."""
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
