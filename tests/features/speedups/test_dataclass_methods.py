"""Dataclasses whose methods aren't compiled behave like others."""

import dataclasses
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from pipeline.features.speedups.dataclass_methods import light_dataclasses


def make_classes():
    """Return classes of all kinds, each with the fields of two of its objects and one to set."""

    @dataclass
    class Empty:
        pass

    @dataclass(order=True)
    class One:
        x: int

    @dataclass(order=True, unsafe_hash=True)
    class Two:
        x: int
        y: list = field(default_factory=list, hash=False)

    @dataclass(frozen=True)
    class Frozen:
        x: int
        __hidden: str = "a"
        unseen: int = field(default=0, repr=False, compare=False)

    @dataclass(frozen=True, slots=True, order=True)
    class Slots:
        x: int
        y: str = "b"

    @dataclass(frozen=True)
    class Child(Frozen):
        z: int = 3

    class Free(Frozen):
        """A class that isn't a dataclass, whose objects take other attributes."""

    @dataclass(eq=False)
    class ByIdentity:
        x: int

    return Empty, One, Two, Frozen, Slots, Child, Free, ByIdentity


def attempt(action: Callable[[], object]) -> object:
    try:
        return action()
    except Exception as error:
        return type(error), str(error)


def describe(cls):
    """Return what the objects of a class do."""
    count = min(1, len(dataclasses.fields(cls)))
    one, same, other = (cls(*[value] * count) for value in (1, 1, 2))
    nested = attempt(lambda: cls([one]))
    operators = ("__eq__", "__lt__", "__le__", "__gt__", "__ge__")
    return [
        *(repr(one), repr(other), repr(nested)),
        *(attempt(partial(operator.eq, one, each)) for each in (same, other, 1, nested)),
        *(attempt(lambda name=name: getattr(one, name)(other)) for name in operators),
        *(attempt(lambda name=name: getattr(other, name)(1)) for name in operators),
        attempt(lambda: hash(one) == hash(same)),
        attempt(lambda: hash(one) == hash(other)),
        attempt(lambda: setattr(other, "x", 5)),
        attempt(lambda: setattr(other, "extra", 5)),
        attempt(lambda: delattr(other, "x")),
        attempt(lambda: delattr(other, "unknown")),
        *(vars(cls).get(name) is None for name in ("__hash__", "__eq__", "__setattr__")),
        *(getattr(getattr(cls, name), "__qualname__", "") for name in (*operators, "__repr__")),
    ]


def test_objects_behave_the_same():
    expected = [describe(cls) for cls in make_classes()]
    with light_dataclasses():
        classes = make_classes()
    assert [describe(cls) for cls in classes] == expected


def test_a_value_that_contains_itself_is_shown():
    with light_dataclasses():
        two = make_classes()[2]
    value = two(1)
    value.y.append(value)
    assert repr(value).endswith(".Two(x=1, y=[...])")


def test_methods_are_compiled_again_later():
    before = {**vars(dataclasses)}
    with light_dataclasses():
        pass
    assert vars(dataclasses) == before


def test_other_versions_of_python_are_left_alone(monkeypatch):
    monkeypatch.setattr(dataclasses, "_hash_fn", lambda fields: None, raising=False)
    before = {**vars(dataclasses)}
    with light_dataclasses():
        assert vars(dataclasses) == before


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="dataclasses may be made in another way")
@pytest.mark.parametrize("name", ["_repr_fn", "_cmp_fn", "_hash_fn", "_frozen_get_del_attr"])
def test_this_version_makes_methods_in_the_known_way(name):
    with light_dataclasses():
        assert "speedups" in getattr(dataclasses, name).__module__
