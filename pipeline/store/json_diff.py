"""Differences between two JSON documents, such as keys of actions or manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

ABSENT = object()


class Difference(NamedTuple):
    """A value that differs; `path` leads to it in both, and `ABSENT` stands where it is missing."""

    path: tuple[str, ...]
    old: Any
    new: Any


def diff_json(old: Any, new: Any, path: tuple[str, ...] = ()) -> Iterator[Difference]:
    """Yield the innermost values that differ; lists of unequal length differ as a whole."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted(old.keys() | new.keys(), key=str):
            before, after = old.get(name, ABSENT), new.get(name, ABSENT)
            yield from diff_json(before, after, (*path, str(name)))
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            member = f"{path[-1] if path else ''}[{index}]"
            yield from diff_json(before, after, (*path[:-1], member))
    elif old != new:
        yield Difference(path, old, new)


def show_value(value: Any) -> str:
    """Shorten a value to 60 characters; a missing one is "none"."""
    if value is ABSENT:
        return "none"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
