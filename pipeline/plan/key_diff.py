"""Describes how two keys differ: in a file, a config key, a tensor or a library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pipeline.moments import call_all
from pipeline.plan.kinds.table import KINDS
from pipeline.plan.kinds.words import describe_common, describe_setting
from pipeline.store.digest import Digest
from pipeline.store.json_diff import Difference, diff_json

Find = Callable[[Digest], Mapping[str, Any] | None]
_MOST_NAMES = 5


def describe_differences(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    find_parts: Find,
    file: str,
    find_key: Find = lambda action: None,
) -> Iterator[str]:
    """Describe how two keys of one kind of action differ, a line for each difference.

    Args:
        find_parts: returns the known parts of a program, by its digest.
        file: the name of the model's source.
        find_key: returns the key of an action that one of the keys names, by the action's digest.
    """

    def describe(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
        for difference in diff_json(_flat(old), _flat(new)):
            match difference.path:
                case ("methods" | "programs", method, "program"):
                    yield from _describe_program(method, difference, find_parts)
                case ("methods", method, "quantize") if _are_digests(difference):
                    before = difference.old and find_key(difference.old)
                    after = difference.new and find_key(difference.new)
                    if before is None or after is None:
                        yield f"quantization of {method} {difference.change()}"
                    else:
                        yield from describe(before, after)
                case _:
                    yield _describe(difference, file)

    yield from filter(None, dict.fromkeys(describe(old, new)))


def _describe(difference: Difference, file: str) -> str:
    """Describe a difference that concerns neither a program nor an action; "" if it is trivial."""
    for words in call_all("describe_key", difference):
        if words is not None:
            return str(words)
    describers = [describe_common, *(kind.describe for kind in KINDS.values())]
    for describe in describers:
        words = describe(difference, file)
        if words is not None:
            return words
    return describe_setting(".".join(difference.path), difference)


def _flat(key: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a validation's key, with the fields of its `measured` key merged into it."""
    measured = key.get("measured", {})
    return {**key, **measured, "code": [key.get("code"), measured.get("code")]}


def _are_digests(difference: Difference) -> bool:
    """Return whether each value is a quantize action's digest (as in a compile key) or missing."""
    return all(
        isinstance(value, str | None) for value in (difference.old, difference.new)
    )


def _describe_program(
    method: str, difference: Difference, find_parts: Find
) -> Iterator[str]:
    before = difference.old
    after = difference.new
    old = find_parts(Digest(before)) if isinstance(before, str) else None
    new = find_parts(Digest(after)) if isinstance(after, str) else None
    if old is None or new is None:
        yield f"the program of {method} {difference.change()}"
        return
    lines = [*_describe_parts(old, new)] or [
        "shapes, metadata or wiring of its graph changed"
    ]
    yield from (f"{method}: {line}" for line in lines)


def _describe_parts(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for part, noun in (("tensors", "tensor"), ("modules", "operators of module")):
        changed = [*diff_json(old[part], new[part])]
        for difference in changed[:_MOST_NAMES]:
            yield f"{noun} {difference.path[-1] or 'at the top'} {difference.change()}"
        if len(changed) > _MOST_NAMES:
            yield f"and {len(changed) - _MOST_NAMES} more {part}"
    for limits in diff_json(old["ranges"], new["ranges"]):
        where = ".".join(limits.path)
        yield f"range of {where}: {limits.values}"
    for part, words in (
        ("signature", "what it takes and returns"),
        ("call", "its call specification"),
        ("schema", "the version of the serialized program"),
    ):
        if old[part] != new[part]:
            yield f"{words} changed"
