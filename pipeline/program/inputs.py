"""Input sets: the arguments of one call of a method, and how they are kept, without pickle."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from pipeline.store.errors import PipelineError

_SCALARS = (int, float, str, type(None))  # bool is an int


@dataclass(frozen=True, eq=False)
class InputSet:
    """`args` and `kwargs` may nest lists, tuples and dicts with str keys; leaves are tensors,
    numbers, bools, strings or None. `origin` says where the set is from, for messages,
    and `generated` that nobody gave it, which is not stored with it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    origin: str = "input"
    generated: bool = False


def as_input_sets(value: Any, origin: str) -> list[InputSet]:
    """What an exporter returns, as numbered input sets: `example 0`, `example 1`, ...

    `value` is one tuple of arguments, or a list whose elements are each a tuple of arguments or an
    (args, kwargs) pair, that is a tuple and a dict. Raises PipelineError with all that is wrong.
    """
    calls = value if isinstance(value, list) else [value]
    sets: list[InputSet] = []
    mistakes = [] if calls else [f"{origin}: an empty list, must hold at least one input set"]
    for number, call in enumerate(calls):
        where = f"{origin} {number}"
        args, kwargs = call if _is_pair(call) else (call, {})
        if type(args) is tuple:
            mistakes += [f"{where}: {m}" for m in (*_foreign(args, "args"), *_foreign(kwargs, ""))]
            sets.append(InputSet(args, kwargs, where))
        else:
            wanted = "must be a tuple of arguments or an (args, kwargs) pair"
            mistakes.append(f"{where}: {kind_of(args)}, {wanted}")
    if mistakes:
        raise PipelineError("\n".join(mistakes))
    return sets


def _is_pair(call: Any) -> bool:
    return type(call) is tuple and [type(part) for part in call] == [tuple, dict]


def _foreign(value: Any, path: str) -> Iterator[str]:
    """What an input set cannot hold, each with its path."""
    if type(value) in (tuple, list):
        for index, element in enumerate(value):
            yield from _foreign(element, f"{path}[{index}]")
    elif type(value) is dict:
        for key, element in value.items():
            if type(key) is str:
                yield from _foreign(element, f"{path}[{key!r}]" if path else key)
            else:
                yield f"{path or 'kwargs'} has the key {key!r}, must be a str"
    elif not isinstance(value, (torch.Tensor, *_SCALARS)):
        known = "a tensor, number, bool, str or None, or a tuple, list or dict of them"
        yield f"{path} is of type {type(value).__name__}, must be {known}"


def kind_of(value: Any) -> str:
    """A value's type for a message, with its length where that can be what is wrong."""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return "a tensor"
    size = f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else ""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}{size}"


def save_inputs(sets: Sequence[InputSet]) -> bytes:
    """Input sets as a safetensors file whose one metadata entry is their tree, as JSON. The same
    values give the same bytes; layouts and shared storage are not kept."""
    tensors: dict[str, torch.Tensor] = {}
    trees = []
    for inputs in sets:
        if wrong := [*_foreign(inputs.args, "args"), *_foreign(inputs.kwargs, "")]:
            raise PipelineError("\n".join(f"{inputs.origin}: {mistake}" for mistake in wrong))
        tree = [_encode(inputs.args, tensors), _encode(inputs.kwargs, tensors), inputs.origin]
        trees.append(tree)
    text = json.dumps(trees, separators=(",", ":"))
    try:
        return bytes(safetensors.torch.save(tensors, {"inputs": text}))
    except (KeyError, ValueError, SafetensorError) as error:
        raise PipelineError(f"input sets cannot be stored: {error}") from error


def load_inputs(data: bytes) -> list[InputSet]:
    """The inverse of `save_inputs`. Raises PipelineError for anything else."""
    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        trees = json.loads(header["__metadata__"]["inputs"])
        return [
            InputSet(_decode(args, tensors), _decode(kwargs, tensors), origin)
            for args, kwargs, origin in trees
        ]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise PipelineError(f"stored input sets cannot be read: {error!r}") from error


def _encode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """A tree as JSON: a scalar is itself, anything else a list that starts with its type."""
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().clone(memory_format=torch.contiguous_format)
        return ["tensor", name]
    if isinstance(value, dict):
        return ["dict", *([key, _encode(v, tensors)] for key, v in value.items())]
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, *(_encode(v, tensors) for v in value)]
    return ["float", value.hex()] if isinstance(value, float) else value


def _decode(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(tree, list):
        return tree
    kind, *rest = tree
    if kind == "tensor":
        return tensors[rest[0]]
    if kind == "float":
        return float.fromhex(rest[0])
    if kind == "dict":
        return {key: _decode(value, tensors) for key, value in rest}
    return {"tuple": tuple, "list": list}[kind](_decode(value, tensors) for value in rest)
