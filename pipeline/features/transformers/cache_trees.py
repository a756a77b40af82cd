"""transformers' caches among the arguments and results of a program, without their classes.

transformers flattens a cache into its tensors and a description of the rest, which names classes.
Here the description is data: nothing that an archive names is imported. When lowering flattens
arguments again, some are not tensors; transformers counts those as part of the description, which
the package holds, and so does this module. Source: `_flatten_to_context` and
`_unflatten_from_context` of `transformers/exporters/exporter_dynamo.py` of 5.24.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import _pytree as fx_pytree
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

_KIND, _INDEX = "_t", "i"  # keys of a leaf in a description
_LEAVES = ("tensor", "sym")
_PREFIX = "transformers."
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class _Cache:
    """A stand-in for an object: its description, with the leaves in their places."""

    def __init__(self, state: Any) -> None:
        self.state = state


_stand_ins: dict[str, type[_Cache]] = {}


def use_cache_trees(program: ExportedProgram) -> None:
    """Make the caches of a program flatten as in transformers. Changes the program in place."""
    signature = program.module_call_graph[0].signature
    if signature is not None:
        signature.in_spec = _replace(signature.in_spec)
        signature.out_spec = _replace(signature.out_spec)


def _replace(spec: TreeSpec) -> TreeSpec:
    if spec.is_leaf():
        return spec
    children = [_replace(child) for child in spec.children()]
    name = pytree.SUPPORTED_SERIALIZED_TYPES[spec.type].serialized_type_name
    context = spec.context
    if name.startswith(_PREFIX):
        # Archives hold a description as JSON in a JSON string.
        while isinstance(context, str):
            context = json.loads(context)
        if isinstance(context, dict) and _KIND in context:
            return TreeSpec(_find_stand_in(name), context, children)
    return TreeSpec(spec.type, spec.context, children)


def _find_stand_in(name: str) -> type[_Cache]:
    """Return the stand-in for the class that torch knows by this name."""
    if name not in _stand_ins:
        stand_in = type("Cache", (_Cache,), {})
        _register(stand_in, name)
        _stand_ins[name] = stand_in
    return _stand_ins[name]


def _register(stand_in: type[_Cache], name: str) -> None:
    def flatten(value: _Cache) -> tuple[list[Any], Any]:
        leaves: list[Any] = []
        context = _describe(value.state, leaves)
        return leaves, context

    def flatten_with_keys(value: _Cache) -> tuple[list[Any], Any]:
        leaves, context = flatten(value)
        return [(pytree.SequenceKey(n), leaf) for n, leaf in enumerate(leaves)], context

    def unflatten(leaves: Iterable[Any], context: Any) -> _Cache:
        return stand_in(_fill(context, list(leaves)))

    pytree.register_pytree_node(
        stand_in,
        flatten,
        unflatten,
        serialized_type_name=name,
        flatten_with_keys_fn=flatten_with_keys,
    )
    # torch.fx flattens by a registry of its own.
    fx_pytree.register_pytree_flatten_spec(stand_in, lambda value, _: flatten(value)[0])


def _describe(value: Any, leaves: list[Any]) -> Any:
    """Return the description of a value, and append its leaves to a list."""
    if isinstance(value, dict):
        return {key: _describe(member, leaves) for key, member in value.items()}
    if isinstance(value, list):
        return [_describe(member, leaves) for member in value]
    if isinstance(value, _SYMBOLS):
        if (constant := _find_constant(value)) is not None:
            return constant
        leaves.append(value)
        return {_KIND: "sym", _INDEX: len(leaves) - 1}
    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return {_KIND: "tensor", _INDEX: len(leaves) - 1}
    return value


def _find_constant(symbol: Any) -> Any:
    """Return the value of a symbol that has become constant, or None."""
    if isinstance(symbol, torch.SymBool):
        return symbol.node.maybe_as_bool()
    if isinstance(symbol, torch.SymFloat):
        return symbol.node.maybe_as_float()
    return symbol.node.maybe_as_int()


def _fill(context: Any, leaves: list[Any]) -> Any:
    """Return a description with the leaves in their places."""
    if isinstance(context, list):
        return [_fill(member, leaves) for member in context]
    if not isinstance(context, dict):
        return context
    if context.get(_KIND) in _LEAVES:
        return leaves[context[_INDEX]]
    return {key: _fill(member, leaves) for key, member in context.items()}
