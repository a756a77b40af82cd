"""Represents the arguments of calls as input sets, and stores them without pickle."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from pipeline.program.containers import make_plain
from pipeline.store.errors import PipelineError

_SCALARS = (int, float, str, type(None))  # bool is an int
_KEYS = (*_SCALARS, tuple)


@dataclass(frozen=True, eq=False)
class InputSet:
    """The arguments of one call.

    `args` and `kwargs` may nest lists, tuples and dicts. Leaves are tensors, numbers, bools,
    strings or None; keys are numbers, strings, None, or tuples of these.

    Attributes:
        origin: where the set comes from, for messages.
        generated: whether the set was generated. `save_inputs` stores neither this attribute nor
            those below.
        case: the kind of a generated set that isn't random, such as `zeros`.
        growth: for a set of large values, the ratio by which each output of the source is larger
            than on ordinary inputs.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    origin: str = "input"
    generated: bool = False
    case: str = ""
    growth: tuple[float, ...] = ()


def as_input_sets(value: Any, origin: str) -> list[InputSet]:
    """Return an exporter's result as numbered input sets: `example 0`, `example 1`, ...

    `value` is one call or a list of calls. A call is a tuple of arguments or an (args, kwargs) pair
    of a tuple and a dict. Containers that torch knows, such as registered dataclasses, become
    tuples and dicts.

    Raises:
        PipelineError: there are no calls, or some aren't valid; the error lists all mistakes.
    """
    calls = value if isinstance(value, list) else [value]
    input_sets: list[InputSet] = []
    mistakes: list[str] = []
    if not calls:
        mistakes.append(f"{origin}: an empty list, must contain at least one input set")
    for number, call in enumerate(calls):
        label = f"{origin} {number}"
        is_pair = type(call) is tuple and [type(part) for part in call] == [tuple, dict]
        args, kwargs = call if is_pair else (call, {})
        if type(args) is not tuple:
            mistakes.append(
                f"{label}: {describe_type(args)}, must be a tuple of arguments or an "
                "(args, kwargs) pair"
            )
            continue
        inputs = InputSet(make_plain(args), make_plain(kwargs), label)
        mistakes += _find_unstorable(inputs)
        input_sets.append(inputs)
    if mistakes:
        raise PipelineError(*mistakes)
    return input_sets


def _find_unstorable(inputs: InputSet) -> list[str]:
    """Return one line for each part of an input set that `save_inputs` can't store."""
    mistakes = [
        *_find_mistakes(inputs.args, "args"),
        *_find_mistakes(inputs.kwargs, ""),
    ]
    return [f"{inputs.origin}: {mistake}" for mistake in mistakes]


def _find_mistakes(value: Any, path: str) -> Iterator[str]:
    if type(value) in (tuple, list):
        for index, element in enumerate(value):
            yield from _find_mistakes(element, f"{path}[{index}]")
    elif type(value) is dict:
        for key, element in value.items():
            if path and isinstance(key, _KEYS):
                yield from _find_mistakes(element, f"{path}[{key!r}]")
            elif path:
                must_be = "a str, a number, None, or a tuple of them"
                yield f"{path} has the key {key!r}, must be {must_be}"
            elif type(key) is str:
                yield from _find_mistakes(element, key)
            else:
                yield f"kwargs has the key {key!r}, must be a str"
    elif not isinstance(value, (torch.Tensor, *_SCALARS)):
        must_be = (
            "a tensor, number, bool, str or None, or a tuple, list or dict of them"
        )
        yield f"{path} is of type {type(value).__name__}, must be {must_be}"


def describe_type(value: Any) -> str:
    """Return a value's type for a message, with the length if it is a container: `a tuple of 2`."""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return "a tensor"
    name = type(value).__name__
    article = "a"
    if name[0] in "aeiou":
        article = "an"
    size = f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else ""
    return f"{article} {name}{size}"


def save_inputs(sets: Sequence[InputSet]) -> bytes:
    """Return input sets as a safetensors file whose only metadata entry holds their trees as JSON.

    Equal values give equal bytes. Memory layouts and shared storage are lost.
    """
    tensors: dict[str, torch.Tensor] = {}
    trees = []

    def encode(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            name = str(len(tensors))
            tensors[name] = leaf.detach().clone(memory_format=torch.contiguous_format)
            return ["tensor", name]
        if isinstance(leaf, float):
            return ["float", leaf.hex()]
        return leaf

    for inputs in sets:
        mistakes = _find_unstorable(inputs)
        if mistakes:
            raise PipelineError(*mistakes)
        args = encode_tree(inputs.args, encode)
        kwargs = encode_tree(inputs.kwargs, encode)
        trees.append([args, kwargs, inputs.origin])
    text = json.dumps(trees, separators=(",", ":"))
    try:
        return bytes(safetensors.torch.save(tensors, {"inputs": text}))
    except (KeyError, ValueError, SafetensorError) as error:
        raise PipelineError(f"input sets cannot be stored: {error}") from error


def load_inputs(data: bytes) -> list[InputSet]:
    """Return the input sets that `save_inputs` stored. Raises PipelineError for any other bytes."""
    try:
        tensors = safetensors.torch.load(data)
        header_size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + header_size])
        trees = json.loads(header["__metadata__"]["inputs"])
        decoders = {"tensor": tensors.__getitem__, "float": float.fromhex}

        def decode(leaf: Any) -> Any:
            if not isinstance(leaf, list):
                return leaf
            kind, value = leaf
            return decoders[kind](value)

        return [
            InputSet(decode_tree(args, decode), decode_tree(kwargs, decode), origin)
            for args, kwargs, origin in trees
        ]
    except (
        Exception
    ) as error:  # safetensors, json and torch raise what damaged bytes lead to
        raise PipelineError(f"stored input sets cannot be read: {error!r}") from error


def encode_tree(tree: Any, encode_leaf: Callable[[Any], Any]) -> Any:
    """Return a tree as JSON, in which each container is a list that starts with its type's name."""
    if isinstance(tree, dict):
        entries = [
            [key, encode_tree(value, encode_leaf)] for key, value in tree.items()
        ]
        return ["dict", *entries]
    if isinstance(tree, (tuple, list)):
        elements = [encode_tree(element, encode_leaf) for element in tree]
        return [type(tree).__name__, *elements]
    return encode_leaf(tree)


def decode_tree(data: Any, decode_leaf: Callable[[Any], Any]) -> Any:
    """Return the tree that `encode_tree` encoded."""
    kind = data[0] if isinstance(data, list) and data else None
    if kind == "dict":
        return {
            _decode_key(key): decode_tree(value, decode_leaf) for key, value in data[1:]
        }
    if kind in ("tuple", "list"):
        elements = [decode_tree(element, decode_leaf) for element in data[1:]]
        if kind == "tuple":
            return tuple(elements)
        return elements
    return decode_leaf(data)


def _decode_key(key: Any) -> Any:
    """Return a dict's key, with lists turned back into the tuples that JSON can't represent."""
    if isinstance(key, list):
        return tuple(map(_decode_key, key))
    return key
