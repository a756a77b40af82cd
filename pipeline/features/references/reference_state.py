"""The state that references can change, kept so that each sequence begins with the same state.

A reference is any callable. Everything that it reaches through attributes, containers, closures and
globals of the workspace is walked; tensors, containers and random number generators are restored.
"""

from __future__ import annotations

import functools
import random
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Graph

from pipeline.plan.places import FolderSet, environment_folders
from pipeline.store.errors import SourceError

Key = int | tuple[int, str]


class ChangedParameterError(Exception):
    """A reference changes a parameter in place, which is not restored."""


_ATOMS = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
)
# These hold no state of a reference, and would be slow to walk.
_CLOSED = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    ExportedProgram,
    Graph,
    FakeTensor,
)


@dataclass(frozen=True, eq=False)
class Global:
    """A global variable that a function of the workspace reads or sets."""

    variables: dict[str, Any]
    name: str


def iter_reachable(root: Any) -> Iterator[Any]:
    """Yield every object that a reference reaches, once each."""
    installed = FolderSet(environment_folders())
    objects: dict[
        Key, Any
    ] = {}  # keeps temporary objects alive, so that no id is reused
    pending = [root]
    while pending:
        value = pending.pop()
        if isinstance(value, (*_ATOMS, *_CLOSED)) or _key(value) in objects:
            continue
        objects[_key(value)] = value
        yield value
        pending.extend(_parts(value, installed))


def _key(value: Any) -> Key:
    return (id(value.variables), value.name) if isinstance(value, Global) else id(value)


def _parts(value: Any, installed: FolderSet) -> Iterable[Any]:
    match value:
        case Tensor():
            return ()
        case Global():
            return [value.variables.get(value.name)]
        case dict():
            return value.values()
        case list() | tuple() | set() | frozenset() | deque():
            return value
        case functools.partial():
            return [value.func, value.args, value.keywords, vars(value)]
        case types.MethodType():
            return [value.__self__, value.__func__]
        case types.FunctionType():
            return _parts_of_function(value, installed)
        case types.CellType():
            with suppress(ValueError):  # an empty cell
                return [value.cell_contents]
            return ()
    return [vars(value)] if hasattr(value, "__dict__") else ()


def _parts_of_function(function: types.FunctionType, installed: FolderSet) -> list[Any]:
    parts: list[Any] = [
        *(function.__closure__ or ()),
        function.__defaults__,
        vars(function),
    ]
    if not installed.hold(function.__code__.co_filename):
        names = set(_names_in(function.__code__)) & function.__globals__.keys()
        parts += [Global(function.__globals__, name) for name in sorted(names)]
    return parts


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


class KeptState:
    """The state of references at the time of construction."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self._kept: dict[
            Key, tuple[Any, Any]
        ] = {}  # holds the objects, so that no id is reused
        for root in roots:
            for value in iter_reachable(root):
                if (content := _content(value)) is not None:
                    self._kept.setdefault(_key(value), (value, content))

    def reachable(self, root: Any) -> set[Key]:
        """Return the keys of the kept state that a reference reaches."""
        return {_key(value) for value in iter_reachable(root)} & self._kept.keys()

    def changed(self) -> set[Key]:
        """Return the keys of the state that has changed since."""
        return {
            key
            for key, (value, content) in self._kept.items()
            if _differs(value, content)
        }

    def is_python(self, keys: Iterable[Key]) -> bool:
        """Return whether some of these keys of the kept state are anything but tensors."""
        return any(not isinstance(self._kept[key][0], Tensor) for key in keys)

    def restore(self) -> None:
        """Restore what changed. Raises ChangedParameterError: parameters are not copied."""
        for value, content in self._kept.values():
            if _differs(value, content):
                _restore(value, content)


def refuse_changed_parameter() -> SourceError:
    """Return the error for a reference that changed a parameter for good."""
    return SourceError("a reference changes a parameter in place; change only buffers")


def keep_state(references: Sequence[Any]) -> Callable[[], None]:
    """Return a function that restores the current state of everything that references reach.

    The function raises SourceError if a parameter changed.
    """
    state = KeptState(references)

    def restore() -> None:
        try:
            state.restore()
        except ChangedParameterError as error:
            raise refuse_changed_parameter() from error

    return restore


# The version of a tensor, and a copy of its values (None for a parameter).
_TensorContent = tuple[int, Tensor | None]
# Random number generators: how their state is read and set.
_GENERATORS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    random.Random: (random.Random.getstate, random.Random.setstate),
}


def _content(value: Any) -> Any:
    """Return a copy of a mutable value's content, or None for anything else."""
    match value:
        case torch.nn.Parameter():
            return _version(value), None
        case Tensor():
            return _version(value), value.detach().clone()
        case Global():
            return [value.variables.get(value.name)]
        case dict():
            return list(value.items())
        case list() | set() | deque():
            return list(value)
        case types.CellType():
            with suppress(ValueError):
                return [value.cell_contents]
    get, _ = _GENERATORS.get(type(value), (None, None))
    return None if get is None else get(value)


def _version(tensor: Tensor) -> int:
    with suppress(RuntimeError):  # inference tensors have no version counter
        return tensor._version
    return 0


def _differs(value: Any, content: Any) -> bool:
    if isinstance(value, Tensor):
        version, values = content
        if values is None:
            return _version(value) != version
        return not _same(value, values)
    now = _content(value)
    if type(value) in _GENERATORS:
        return bool(
            (now != content).any() if isinstance(now, Tensor) else now != content
        )
    if isinstance(value, dict):
        now = [part for item in now for part in item]
        content = [part for item in content for part in item]
    pairs = zip(now or (), content, strict=False)
    return len(now or ()) != len(content) or any(a is not b for a, b in pairs)


def _same(tensor: Tensor, kept: Tensor) -> bool:
    if tensor.shape != kept.shape or tensor.dtype != kept.dtype:
        return False
    if torch.equal(tensor, kept):
        return True
    counts_nan = kept.dtype.is_floating_point or kept.is_complex()
    return counts_nan and bool(torch.isclose(tensor, kept, 0, 0, equal_nan=True).all())


def _restore(value: Any, content: Any) -> None:
    match value:
        case Tensor():
            _restore_tensor(value, content)
        case Global():
            value.variables[value.name] = content[0]
        case dict():
            value.clear()
            value.update(content)
        case list():
            value[:] = content
        case set():
            value.clear()
            value.update(content)
        case deque():
            value.clear()
            value.extend(content)
        case types.CellType():
            value.cell_contents = content[0]
        case _:
            _GENERATORS[type(value)][1](value, content)


def _restore_tensor(tensor: Tensor, content: _TensorContent) -> None:
    _, values = content
    if values is None:
        raise ChangedParameterError(
            "no error, but changes a parameter in place; change only buffers"
        )
    with torch.no_grad():
        if tensor.shape == values.shape and tensor.dtype == values.dtype:
            tensor.copy_(values)
        else:
            tensor.data = values.clone()


@contextmanager
def preserving_globals() -> Iterator[None]:
    """Restore the process state that a reference may change: modes, defaults and generators."""
    grad, dtype, device = (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
    )
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        torch.set_default_device(device)
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.set_rng_state(states[2])


@contextmanager
def with_defaults(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Set torch's defaults to those that the exporter ran with, while references run."""
    with preserving_globals():
        torch.set_default_dtype(dtype)
        if device != torch.get_default_device():
            torch.set_default_device(device)
        yield


def seed_all(seed: int) -> None:
    """Seed the generators of Python, numpy and torch."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
