"""Records method signatures as the author of the source wrote them, independent of the program.

A `.pte` has positions, dtypes and greatest sizes. This record adds the arguments' names, their
nesting, values that the export fixed, which sizes are equal, and which inputs a method changes.
Compiling creates the record, a package's manifest holds it, and `features/loading` uses it to call
methods.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from pipeline.program import argument_specs as specs
from pipeline.program.argument_specs import Argument, Extent, Json
from pipeline.program.containers import build_plain
from pipeline.program.inputs import encode_tree
from pipeline.program.signature import (
    argument_names,
    bounds,
    call_signature,
    expression,
    iter_dynamic_sizes,
    returned_values,
    signature,
)
from pipeline.program.training import find_training_outputs


def record_signature(
    program: ExportedProgram, reexported: bool = False
) -> dict[str, Json]:
    """Return the signature of a program as strict JSON.

    Args:
        reexported: whether the program was exported a second time, as quantizing does. torch may
            then require sizes of at least 2, which the first export did not, so a least size of 2
            counts as no limit.

    Returns:
        `args` and `kwargs`: each argument's name and its value, a tree of tuples, lists and dicts
        as `encode_tree` writes it. `outputs`: the tree of the returned values, likewise; for a
        method that trains, a dict of its `outputs` and, by name, its `gradients`,
        `input_gradients` and `parameters`. `changes`: the positions, among the leaves of the
        arguments, of inputs changed in place. It is empty here, since only a functional program
        shows them; the caller fills it in.
    """
    numbering = _Numbering(program, 2 if reexported else 0)
    inputs = [numbering.argument(a.name, a.value) for a in signature(program)]
    args, kwargs = build_plain(inputs, call_signature(program).in_spec)
    names, keywords = argument_names(program)
    outputs = [
        numbering.output(f"output{n}", value) for n, value in returned_values(program)
    ]
    returned = build_plain(outputs, call_signature(program).out_spec)
    training_outputs = find_training_outputs(program)
    if training_outputs:
        returned = {"outputs": returned}
        for kind, values in training_outputs.items():
            returned[kind] = {
                name: numbering.output(f"{kind}[{name!r}]", value)
                for name, value in values
            }
    return {
        "args": [[name, _encode(tree)] for name, tree in zip(names, args, strict=True)],
        "kwargs": [[name, _encode(kwargs[name])] for name in keywords],
        "outputs": _encode(returned),
        "changes": [],
    }


def _encode(tree: Any) -> Json:
    return encode_tree(tree, _encode_argument)


def _encode_argument(argument: Argument) -> Json:
    return {"name": argument.name, **specs.leaf_to_json(argument.value)}


class _Numbering:
    """A maker of leaves whose symbols are numbered by first use: names differ between exports."""

    def __init__(self, program: ExportedProgram, unlimited: int) -> None:
        self._program = program
        self._unlimited = unlimited
        self._numbers: dict[sympy.Symbol, sympy.Symbol] = {}
        # Sizes that consist of a single symbol get the first numbers.
        for _, size in iter_dynamic_sizes(signature(program)):
            size_expression = expression(size)
            if isinstance(size_expression, sympy.Symbol):
                self._number(size_expression)

    def argument(self, name: str, value: Any) -> Argument:
        return Argument(name, specs.make_leaf(value, self._extent))

    def output(self, name: str, value: Any) -> Argument:
        return Argument(name, specs.make_leaf(value, self._extent, ordered=False))

    def _extent(self, size: int | torch.SymInt) -> Extent:
        size_expression = expression(size)
        symbols = size_expression.free_symbols
        least, greatest = bounds(self._program, size_expression)
        if symbols and least <= self._unlimited:
            least = 0
        for symbol in sorted(symbols, key=str):
            self._number(symbol)
        numbered = size_expression.xreplace(self._numbers)
        return Extent(numbered if _can_be_recorded(numbered) else None, least, greatest)

    def _number(self, symbol: sympy.Symbol) -> None:
        if symbol not in self._numbers:
            self._numbers[symbol] = specs.size_symbol(f"d{len(self._numbers)}")


def _can_be_recorded(size: sympy.Expr) -> bool:
    for part in sympy.preorder_traversal(size):
        if part.is_Rational or part.is_Symbol:
            continue
        if type(part).__name__ not in specs.FUNCTIONS:
            return False
    return True
