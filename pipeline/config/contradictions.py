"""Finds contradictions in a package config that its shape alone reveals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pipeline.store.errors import did_you_mean

_K = TypeVar("_K")


def find_contradictions(
    data: dict[str, Any],
) -> Iterator[tuple[tuple[int | str, ...], str, str]]:
    """Yield the contradictions in a package's data: the place, the fault and a hint."""
    methods = [
        name for name in as_kind(dict, data.get("methods")) if isinstance(name, str)
    ]
    for name in as_kind(dict, data.get("constant_methods")):
        if name in methods:
            yield (
                ("constant_methods", name),
                "is also a method of the model",
                "rename it",
            )
    validation = as_kind(dict, data.get("validate"))
    for name in as_kind(dict, validation.get("methods")):
        if isinstance(name, str) and name not in methods:
            hint = did_you_mean(name, methods)
            yield ("validate", "methods", name), "is not a method of this package", hint
    planning = as_kind(dict, as_kind(dict, data.get("emit")).get("memory_planning"))
    shared = planning.get("share_mutable_buffers") is True
    for number, names in enumerate(as_kind(list, validation.get("sequences"))):
        where = ("validate", "sequences", number)
        for place, name in enumerate(as_kind(list, names)):
            if isinstance(name, str) and name not in methods:
                hint = did_you_mean(name, methods)
                yield (*where, place), f"'{name}' is not a method of this package", hint
        distinct_names = {str(name) for name in as_kind(list, names)}
        if len(distinct_names) > 1 and not shared:
            fault = "its methods share no state: each has its own buffers"
            yield (
                where,
                fault,
                "set `emit: {memory_planning: {share_mutable_buffers: true}}`",
            )


def as_kind(kind: type[_K], value: object) -> _K:
    # The models report values of another type as mistakes.
    if isinstance(value, kind):
        return value
    return kind()
