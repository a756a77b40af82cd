"""Makes the methods of dataclasses without compiling code for each of them.

Importing torch and ExecuTorch makes 490 dataclasses, which takes an eighth of the import. All their
methods but `__init__` can be closures over the names of their fields.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import FrozenInstanceError
from functools import partial
from typing import Any

from pipeline.program.patching import replaced

_Method = Callable[..., Any]
_Fields = Sequence[dataclasses.Field[Any]]


@contextmanager
def light_dataclasses() -> Iterator[None]:
    """Within the context, make dataclasses faster, if Python makes their methods as 3.11 does."""
    with ExitStack() as stack:
        if all(
            _parameters(getattr(dataclasses, name, None)) == _parameters(make)
            for name, make in _MAKERS.items()
        ):
            for name, make in _MAKERS.items():
                stack.enter_context(
                    replaced(dataclasses, name, partial(_replace, make))
                )
        yield


def _replace(make: _Method, original: _Method) -> _Method:
    return make


def _parameters(function: _Method | None) -> list[str]:
    return [] if function is None else list(inspect.signature(function).parameters)


def _make_repr(fields: _Fields, globals: Any) -> _Method:
    names = [field.name for field in fields]

    def __repr__(self: Any) -> str:  # noqa: N807
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({values})"

    return dataclasses._recursive_repr(__repr__)  # type: ignore[attr-defined,no-any-return]


def _make_comparison(
    name: str, op: str, self_tuple: str, other_tuple: str, globals: Any
) -> _Method:
    """Return a method that compares tuples of fields, written as `(self.x,self.y,)`."""
    read = _make_reader(
        each.removeprefix("self.") for each in self_tuple[1:-1].split(",") if each
    )
    compare = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        if other.__class__ is self.__class__:
            return compare(read(self), read(other))
        return NotImplemented

    method.__name__ = name
    return method


def _make_hash(fields: _Fields, globals: Any) -> _Method:
    read = _make_reader(field.name for field in fields)

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(read(self))

    return __hash__


def _make_refusals(cls: type, fields: _Fields, globals: Any) -> tuple[_Method, _Method]:
    """Return the methods with which a frozen class refuses to set and delete fields."""
    names = frozenset(field.name for field in fields)

    def __setattr__(self: Any, name: str, value: Any) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)  # type: ignore[arg-type]

    def __delattr__(self: Any, name: str) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)  # type: ignore[arg-type]

    return __setattr__, __delattr__


def _make_reader(names: Iterable[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads attributes as a tuple."""
    fields = list(names)
    if len(fields) > 1:
        return operator.attrgetter(*fields)
    return lambda value: tuple(getattr(value, field) for field in fields)


_MAKERS: dict[str, _Method] = {
    "_repr_fn": _make_repr,
    "_cmp_fn": _make_comparison,
    "_hash_fn": _make_hash,
    "_frozen_get_del_attr": _make_refusals,
}
