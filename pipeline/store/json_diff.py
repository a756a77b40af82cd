"""Differences between two JSON documents, such as action keys, manifests or figures.

Every comparison words its differences with these functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

ABSENT = object()


class Difference(NamedTuple):
    """A value that differs, with its `path` in both documents; a missing value is `ABSENT`."""

    path: tuple[str, ...]
    old: Any
    new: Any

    @property
    def values(self) -> str:
        """The old and the new value, in the form that a line shows."""
        return f"{show_value(self.old)} -> {show_value(self.new)}"

    def change(
        self, appeared: str = "is new", gone: str = "is gone", changed: str = "changed"
    ) -> str:
        """Return the verb for a value that appeared, disappeared or changed."""
        if self.old is ABSENT or self.old is None:
            return appeared
        return gone if self.new is ABSENT or self.new is None else changed


def diff_json(old: Any, new: Any, path: tuple[str, ...] = ()) -> Iterator[Difference]:
    """Yield the innermost values that differ; lists of unequal length differ as a whole."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for difference in diff_names(old, new):
            yield from diff_json(
                difference.old, difference.new, (*path, *difference.path)
            )
    elif (
        isinstance(old, list | tuple)
        and isinstance(new, list | tuple)
        and len(old) == len(new)
    ):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            member = f"{path[-1] if path else ''}[{index}]"
            yield from diff_json(before, after, (*path[:-1], member))
    elif old != new:
        yield Difference(path, old, new)


def diff_names(
    old: Mapping[str, Any], new: Mapping[str, Any], absent: Any = ABSENT
) -> Iterator[Difference]:
    """Yield the values of two mappings that differ, as a whole; `absent` replaces missing ones."""
    for name in sorted(old.keys() | new.keys(), key=str):
        before, after = old.get(name, absent), new.get(name, absent)
        if before != after:
            yield Difference((str(name),), before, after)


def show_value(value: Any) -> str:
    """Shorten a value to 60 characters; a missing one is "none"."""
    if value is ABSENT:
        return "none"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
