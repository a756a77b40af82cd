"""The Python state that a reference can change as it runs: attributes, containers, random numbers.

`storages.py` keeps the memory of tensors, when it is written to.
"""

from __future__ import annotations

import dis
import functools
import random
import sys
from collections import deque
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    MutableMapping,
    MutableSequence,
    MutableSet,
)
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

_DEPTH = 3  # levels of containers in attributes
_TORCH_DICTS = ("_parameters", "_buffers", "_modules")
_CALLABLES = (nn.Module, FunctionType, MethodType, functools.partial)
_OWN = "__dict__"
_MISSING = object()


def find_holders(reference: Callable[..., object]) -> dict[int, tuple[str, Any]]:
    """Return the objects that hold a callable's state, with qualified names, by id.

    These are modules, and other objects whose method it is or that its closure refers to.
    """
    # By id, since the objects need not be hashable.
    holders: dict[int, tuple[str, Any]] = {}
    pending: list[tuple[str, Any]] = [("", reference)]
    while pending:
        name, value = pending.pop(0)
        if id(value) in holders:
            continue
        if isinstance(value, nn.Module):
            for path, module in value.named_modules():
                holders.setdefault(id(module), (path, module))
            pending.extend(("", hook) for hook in _hooks(value))
        elif isinstance(value, functools.partial):
            pending += [
                ("", part)
                for part in (value.func, *value.args, *value.keywords.values())
            ]
        elif isinstance(value, MethodType):
            pending += [("", value.__self__), ("", value.__func__)]
        elif isinstance(value, FunctionType):
            holders[id(value)] = (name, value)
            pending += [(name, part) for name, part in _referred(value)]
        elif _is_plain_object(value):
            holders[id(value)] = (name, value)
            pending += [
                (key, part) for key, part in vars(value).items() if _may_hold(part)
            ]
    return holders


def _hooks(module: nn.Module) -> Iterator[Any]:
    for owner in module.modules():
        yield from owner._forward_hooks.values()
        yield from owner._forward_pre_hooks.values()


def _referred(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the objects in a function's closure, and the global modules and functions it names."""
    for name, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=True
    ):
        value = _cell_value(cell)
        if _may_hold(value):
            yield name, value
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        is_local = getattr(value, "__module__", None) == function.__module__
        if isinstance(value, _CALLABLES) and (
            is_local or not isinstance(value, FunctionType)
        ):
            yield name, value


def _cell_value(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _may_hold(value: Any) -> bool:
    return isinstance(value, _CALLABLES) or _is_plain_object(value)


def _is_plain_object(value: Any) -> bool:
    if isinstance(value, (type, Tensor)) or not hasattr(value, "__dict__"):
        return False
    return type(value).__module__.partition(".")[0] not in _NO_HOLDERS


# Objects from these packages hold no state of a model, and much that is better left alone.
_NO_HOLDERS = frozenset({"torch", "numpy", "builtins", "types", "functools", "sympy"})


class PythonState:
    """Attributes and containers of the holders of a reference, as they are now.

    After `restore`, `changed` names the attributes that a run changed.
    """

    def __init__(self, holders: dict[int, tuple[str, Any]]) -> None:
        self.holders = holders
        self.changed: list[str] = []
        self._attributes = [(n, h, dict(vars(h))) for n, h in self.holders.values()]
        self._containers: list[tuple[str, Any, Any]] = []
        for name, _, attributes in self._attributes:
            for key, value in attributes.items():
                self._keep_container(_join(name, key), value, _DEPTH)
        self._variables = list(_iter_variables(self.holders.values()))
        self._random = _RandomState()

    def _keep_container(self, name: str, value: Any, depth: int) -> None:
        if depth and isinstance(value, (list, dict, set, deque)):
            self._containers.append((name, value, value.copy()))
            for part in value.values() if isinstance(value, dict) else value:
                self._keep_container(name, part, depth - 1)

    def restore(self) -> None:
        """Restore the state that a run changed."""
        for name, holder, before in self._attributes:
            now = vars(holder)
            if not _same_elements(now, before):
                self.changed += _changed_keys(_join(name, _OWN), now, before)
                now.clear()
                now.update(before)
        for name, container, before in self._containers:
            if not _same_elements(container, before):
                self.changed += _changed_keys(name, container, before)
                _refill(container, before)
        for variable in self._variables:
            if variable.restore():
                self.changed.append(variable.name)
        self.changed = sorted(set(self.changed))
        self._random.restore()


def _join(name: str, key: str) -> str:
    if name:
        return f"{name}.{key}"
    return key


def _changed_keys(name: str, now: Any, before: Any) -> Iterator[str]:
    """Yield the names of a container's changes; for an object's dicts, its changed entries."""
    owner, _, key = name.rpartition(".")
    if key not in (*_TORCH_DICTS, _OWN):
        yield name
        return
    for entry in {*now, *before}:
        if now.get(entry, _MISSING) is not before.get(entry, _MISSING):
            yield _join(owner, entry)


def _same_elements(container: Any, earlier: Any) -> bool:
    if len(container) != len(earlier):
        return False
    # By identity: comparing tensors would compute, and an equal copy is another object.
    if isinstance(container, dict):
        return all(
            k in earlier and earlier[k] is value for k, value in container.items()
        )
    if isinstance(container, set):
        return bool(container == earlier)
    return all(a is b for a, b in zip(container, earlier, strict=True))


def _refill(container: Any, before: Any) -> None:
    # In place, since the reference refers to this object.
    container.clear()
    if isinstance(container, (MutableMapping, MutableSet)):
        container.update(before)  # type: ignore[union-attr]
    elif isinstance(container, MutableSequence):
        container.extend(before)


class _Variable:
    """A global or enclosing variable that a function sets, and its value now."""

    def __init__(self, name: str, variables: dict[str, Any] | CellType) -> None:
        self.name = name
        self.variables = variables
        self._before = self._value()

    def _value(self) -> Any:
        if isinstance(self.variables, dict):
            return self.variables.get(self.name, _MISSING)
        return _cell_value(self.variables)

    def restore(self) -> bool:
        """Restore the earlier value, and return whether it had changed."""
        if self._value() is self._before:
            return False
        if isinstance(self.variables, CellType):
            self.variables.cell_contents = self._before
        elif self._before is _MISSING:
            del self.variables[self.name]
        else:
            self.variables[self.name] = self._before
        return True


def _iter_variables(holders: Iterable[tuple[str, Any]]) -> Iterator[_Variable]:
    """Yield the variables that functions of holders, and of their classes, set."""
    visited: set[int] = set()
    for _, holder in holders:
        for function in _functions(holder):
            if id(function) not in visited:
                visited.add(id(function))
                yield from _set_variables(function)


def _functions(holder: Any) -> Iterator[FunctionType]:
    if isinstance(holder, FunctionType):
        yield holder
        return
    for kind in type(holder).__mro__:
        if kind.__module__.partition(".")[0] not in _NO_HOLDERS:
            yield from (
                value
                for value in vars(kind).values()
                if isinstance(value, FunctionType)
            )


def _set_variables(function: FunctionType) -> Iterator[_Variable]:
    for instruction in dis.get_instructions(function):
        if instruction.opname == "STORE_GLOBAL":
            yield _Variable(str(instruction.argval), function.__globals__)
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        yield _Variable(name, cell)


class _RandomState:
    """The states of the random number generators, as they are now."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        # Not imported for this: if the process hasn't imported it, no reference has drawn from it.
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy else None

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)  # type: ignore[attr-defined]
