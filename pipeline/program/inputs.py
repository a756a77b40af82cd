"""Input sets: the arguments of one call of a method, and how they are kept, without pickle."""

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
    """`args` and `kwargs` may nest lists, tuples and dicts; leaves are tensors, numbers, bools,
    strings or None, keys are numbers, strings, None, or tuples of them. `origin` says where the set
    is from, for messages, and `generated` that nobody gave it, which is not stored with it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    origin: str = "input"
    generated: bool = False


def as_input_sets(value: Any, origin: str) -> list[InputSet]:
    """Return numbered input sets of what an exporter returned: `example 0`, `example 1`, ...

    `value` is one tuple of arguments, or a list whose elements are each a tuple of arguments or an
    (args, kwargs) pair, that is a tuple and a dict. Containers that torch knows, such as registered
    dataclasses, become tuples and dicts. Raises PipelineError with all that is wrong.
    """
    calls = value if isinstance(value, list) else [value]
    sets: list[InputSet] = []
    mistakes = [] if calls else [f"{origin}: an empty list, must hold at least one input set"]
    for number, call in enumerate(calls):
        where = f"{origin} {number}"
        is_pair = type(call) is tuple and [type(part) for part in call] == [tuple, dict]
        args, kwargs = call if is_pair else (call, {})
        if type(args) is tuple:
            args, kwargs = make_plain(args), make_plain(kwargs)
            mistakes += [
                f"{where}: {m}" for m in (*_find_foreign(args, "args"), *_find_foreign(kwargs, ""))
            ]
            sets.append(InputSet(args, kwargs, where))
        else:
            wanted = "must be a tuple of arguments or an (args, kwargs) pair"
            mistakes.append(f"{where}: {describe_type(args)}, {wanted}")
    if mistakes:
        raise PipelineError(*mistakes)
    return sets


def _find_foreign(value: Any, path: str) -> Iterator[str]:
    """Yield what an input set cannot hold, each with its path."""
    if type(value) in (tuple, list):
        for index, element in enumerate(value):
            yield from _find_foreign(element, f"{path}[{index}]")
    elif type(value) is dict:
        for key, element in value.items():
            if type(key) is str or (path and isinstance(key, _KEYS)):
                yield from _find_foreign(element, f"{path}[{key!r}]" if path else str(key))
            else:
                wanted = "a str, a number, None, or a tuple of them" if path else "a str"
                yield f"{path or 'kwargs'} has the key {key!r}, must be {wanted}"
    elif not isinstance(value, (torch.Tensor, *_SCALARS)):
        known = "a tensor, number, bool, str or None, or a tuple, list or dict of them"
        yield f"{path} is of type {type(value).__name__}, must be {known}"


def describe_type(value: Any) -> str:
    """Return a value's type for a message, with its length where that can be what is wrong."""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return "a tensor"
    size = f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else ""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}{size}"


def save_inputs(sets: Sequence[InputSet]) -> bytes:
    """Return input sets as a safetensors file whose one metadata entry is their tree, as JSON.

    The same values become the same bytes; layouts and shared storage are not kept.
    """
    tensors: dict[str, torch.Tensor] = {}
    trees = []

    def encode(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return ["float", leaf.hex()] if isinstance(leaf, float) else leaf
        name = str(len(tensors))
        tensors[name] = leaf.detach().clone(memory_format=torch.contiguous_format)
        return ["tensor", name]

    for inputs in sets:
        if wrong := [*_find_foreign(inputs.args, "args"), *_find_foreign(inputs.kwargs, "")]:
            raise PipelineError(*(f"{inputs.origin}: {mistake}" for mistake in wrong))
        trees.append(
            [*(encode_tree(t, encode) for t in (inputs.args, inputs.kwargs)), inputs.origin]
        )
    text = json.dumps(trees, separators=(",", ":"))
    try:
        return bytes(safetensors.torch.save(tensors, {"inputs": text}))
    except (KeyError, ValueError, SafetensorError) as error:
        raise PipelineError(f"input sets cannot be stored: {error}") from error


def load_inputs(data: bytes) -> list[InputSet]:
    """Return the input sets that `save_inputs` stored. Raises PipelineError for anything else."""
    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
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
    except Exception as error:  # safetensors, json and torch raise what damaged bytes lead to
        raise PipelineError(f"stored input sets cannot be read: {error!r}") from error


def encode_tree(tree: Any, encode_leaf: Callable[[Any], Any]) -> Any:
    """Return a tree as JSON, in which containers are lists that start with their type."""
    if isinstance(tree, dict):
        return ["dict", *([key, encode_tree(v, encode_leaf)] for key, v in tree.items())]
    if isinstance(tree, (tuple, list)):
        return [type(tree).__name__, *(encode_tree(v, encode_leaf) for v in tree)]
    return encode_leaf(tree)


def decode_tree(data: Any, decode_leaf: Callable[[Any], Any]) -> Any:
    """Return the tree of which `encode_tree` made JSON."""
    kind = data[0] if isinstance(data, list) and data else None
    if kind == "dict":
        return {_decode_key(key): decode_tree(value, decode_leaf) for key, value in data[1:]}
    if kind in ("tuple", "list"):
        return (tuple if kind == "tuple" else list)(decode_tree(v, decode_leaf) for v in data[1:])
    return decode_leaf(data)


def _decode_key(key: Any) -> Any:
    """Return a key of which JSON made a list if it was a tuple."""
    return tuple(map(_decode_key, key)) if isinstance(key, list) else key
