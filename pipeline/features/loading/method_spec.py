"""Recorded method signatures: checks and flattens arguments, and checks and nests outputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from pipeline.program import argument_specs as specs
from pipeline.program.argument_specs import (
    Argument,
    ConstantSpec,
    Extent,
    Json,
    Leaf,
    TensorSpec,
)
from pipeline.program.inputs import decode_tree
from pipeline.program.signature import Pair, lay_out, pair_trees
from pipeline.store.errors import PipelineError


class ArgumentError(PipelineError, TypeError):
    """A call that doesn't fit its method, with one line per mistake."""


@dataclass(frozen=True)
class MethodSpec:
    """The signature of a method.

    Attributes:
        args, kwargs: each argument's name and its value, a tree of Arguments with Leafs.
        outputs: the returned value, a tree of Arguments with Leafs. A method that trains returns a
            dict of its `outputs`, and by name its `gradients`, `input_gradients` and `parameters`.
        changes: the indices, among the leaves of the arguments, of inputs that are changed in
            place.
    """

    args: tuple[tuple[str, Any], ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: Any
    changes: tuple[int, ...] = ()

    @property
    def signature(self) -> inspect.Signature:
        """The Python signature; values that the export fixed are defaults where possible."""
        named = all(name.isidentifier() for name, _ in self.args)
        parameter = inspect.Parameter
        kind = parameter.POSITIONAL_OR_KEYWORD if named else parameter.POSITIONAL_ONLY
        parameters: list[inspect.Parameter] = []
        # In reverse order: a parameter can't have a default if the one after it has none.
        default = None
        for number, (name, tree) in reversed([*enumerate(self.args)]):
            if default is not parameter.empty:
                default = _default(tree)
            if name.isidentifier():
                identifier = name
            else:
                identifier = f"args_{number}"
            parameters.insert(0, parameter(identifier, kind, default=default))
        for name, tree in self.kwargs:
            parameters.append(
                parameter(name, parameter.KEYWORD_ONLY, default=_default(tree))
            )
        return inspect.Signature(parameters)

    def flat_arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """Return the leaves of a call unchanged, in the order of the method's inputs.

        Raises:
            ArgumentError: the call doesn't fit the signature; it lists every mistake.
        """
        mistakes: list[str] = []
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{error}; it takes {self.signature}") from None
        bound.apply_defaults()
        values = [*bound.args, *bound.kwargs.values()]
        pairs: list[Pair] = []
        for (_, tree), value in zip((*self.args, *self.kwargs), values, strict=True):
            pair_trees(tree, value, pairs, mistakes)
        mistakes += specs.check_values(pairs)
        if mistakes:
            raise ArgumentError(*mistakes)
        return [value for _, value in pairs]

    @property
    def _arguments(self) -> list[Argument]:
        trees = [tree for _, tree in (*self.args, *self.kwargs)]
        return pytree.tree_leaves(trees)

    def lay_out(self, leaves: Sequence[Any]) -> list[Any]:
        """Return copies of a call's leaves, in the layouts that the method was exported with."""
        copies = []
        for argument, value in zip(self._arguments, leaves, strict=True):
            if isinstance(argument.value, TensorSpec):
                value = lay_out(value, argument.value.order)
            copies.append(value)
        return copies

    def nested_outputs(self, leaves: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """Return the nested result of a call.

        Args:
            leaves: the leaves of the call's arguments.
            outputs: the flat outputs, without the inputs that were changed in place.

        Raises:
            PipelineError: the outputs differ from the declared ones; it lists every mistake.
        """
        expected = pytree.tree_leaves(self.outputs)
        if len(outputs) != len(expected):
            raise PipelineError(
                f"returns {len(outputs)} outputs, must return {len(expected)}"
            )
        bound = specs.bind_sizes(zip(self._arguments, leaves, strict=True))
        mistakes = []
        for argument, value in zip(expected, outputs, strict=True):
            for mistake in _check_output(argument.value, value, bound):
                mistakes.append(f"{argument.name}: {mistake}")
        if mistakes:
            raise PipelineError(*mistakes)
        return pytree.tree_unflatten(outputs, pytree.tree_structure(self.outputs))

    @classmethod
    def from_json(cls, data: Json) -> MethodSpec:
        """Return the signature that `record_signature` recorded.

        Raises:
            PipelineError: the data isn't a recorded signature.
        """

        def decode_argument(record: Json) -> Argument:
            return Argument(str(record["name"]), leaf_from_json(record))

        def decode(tree: Json) -> Any:
            return decode_tree(tree, decode_argument)

        try:
            method_spec = cls(
                tuple((str(name), decode(tree)) for name, tree in data["args"]),
                tuple((str(name), decode(tree)) for name, tree in data["kwargs"]),
                decode(data["outputs"]),
                tuple(map(int, data["changes"])),
            )
            _ = method_spec.signature  # accepts valid Python names only
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            raise PipelineError(
                f"a signature that cannot be read ({error!r})"
            ) from error
        except RecursionError as error:
            raise PipelineError(
                "a signature that cannot be read (nested too deeply)"
            ) from error
        return method_spec


def _default(tree: Any) -> Any:
    fixed = isinstance(tree, Argument) and isinstance(tree.value, ConstantSpec)
    if fixed:
        return tree.value.value
    return inspect.Parameter.empty


def _check_output(
    leaf: Leaf | None, value: Any, bound: dict[sympy.Symbol, sympy.Integer]
) -> Iterator[str]:
    """Yield the mistakes in one output; its expected sizes are computed from the arguments'."""
    if not isinstance(leaf, TensorSpec):
        if leaf is not None and isinstance(value, torch.Tensor):
            yield "a tensor, must be none"
        return
    mistakes = list(specs.check_leaf(leaf, value))
    if mistakes:
        yield from mistakes
        return
    for dimension, extent in enumerate(leaf.sizes):
        size = value.shape[dimension]
        if extent.expression is not None:
            expected = extent.expression.xreplace(bound)
            if expected.is_Integer and int(expected) != size:
                yield f"size {size} at dimension {dimension}, must be {expected}"


def leaf_from_json(data: Json) -> Leaf:
    """Return the leaf that `specs.leaf_to_json` wrote, without evaluating anything.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the data isn't a recorded leaf.
    """
    if "dtype" in data:
        dtype = getattr(torch, data["dtype"])
        # A damaged manifest may name any attribute of torch.
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"no dtype {data['dtype']!r}")
        sizes = tuple(map(_extent_from_json, data["sizes"]))
        order = tuple(map(int, data["order"]))
        if sorted(order) != [*range(len(sizes))]:
            raise ValueError(f"no order of {len(sizes)} dimensions: {order}")
        return TensorSpec(dtype, sizes, order)
    if "int" in data:
        return _extent_from_json(data["int"])
    if "scalar" in data:
        scalars: Mapping[str, Leaf] = {"float": "float", "bool": "bool"}
        return scalars[data["scalar"]]
    return ConstantSpec(
        float.fromhex(data["float"]) if "float" in data else data["value"]
    )


def _extent_from_json(data: Json) -> Extent:
    if isinstance(data, int):
        return Extent(sympy.Integer(data), data, data)
    size = data["size"]
    greatest = data["max"]
    return Extent(
        None if size is None else _expression_from_json(size),
        int(data["min"]),
        None if greatest is None else int(greatest),
    )


def _expression_from_json(data: Json) -> sympy.Expr:
    if isinstance(data, int):
        return sympy.Integer(data)
    if isinstance(data, str):
        # `sympify` would evaluate Python, and a manifest may come from an untrusted source.
        if not re.fullmatch(r"d\d+", data):
            raise ValueError(f"no size is called {data!r}")
        return specs.size_symbol(data)
    name, *args = data
    return specs.FUNCTIONS[name](*map(_expression_from_json, args))


def read_signature(data: Json) -> MethodSpec:
    """Return a method's signature as a manifest records it.

    Raises:
        PipelineError: the data isn't a recorded signature.
    """
    return MethodSpec.from_json(data)
