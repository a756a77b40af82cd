"""Entries of actions in a store: what one holds, when it is good, which blobs it names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.store import digest
from pipeline.store.agreement import fits_action
from pipeline.store.digest import Digest

_STAGE = re.compile(r"[\w.+:() -]{1,200}")  # a name that can be shown
_REFERENCE = re.compile(rb'"([0-9a-f]{64})"')


@dataclass(frozen=True)
class ActionEntry:
    """The key and the result of an action, and the seconds of wall time that it took; `peak` are
    the bytes of memory that its process held at the most, 0 where that is not known.

    `unsigned`: it came of a run that believed unsigned results of a remote, and counts where that
    is so again. `stages`: the seconds of its stages by name, and of the steps within them.
    """

    key: Mapping[str, Any]
    result: Mapping[str, Any]
    seconds: float
    unsigned: bool = False
    stages: Mapping[str, float] = field(default_factory=dict)
    peak: int = 0

    @property
    def checksum(self) -> Digest:
        peak = [self.peak] if self.peak else []
        return digest.hash_json([self.key, self.result, self.seconds, self.stages, *peak])

    def to_json(self) -> dict[str, Any]:
        fields = {"key": self.key, "result": self.result, "seconds": self.seconds}
        optional = ("unsigned", "stages", "peak")
        more = {name: value for name in optional if (value := getattr(self, name))}
        return {**fields, "check": self.checksum, **more}

    @classmethod
    def from_json(cls, record: Any, action: Digest) -> ActionEntry | None:
        """Read the entry of an action; None if the record is damaged or of another action, or its
        result is none that such an action can have."""
        try:
            unsigned = record.get("unsigned", False) is not False
            stages = record.get("stages", {})
            peak = record.get("peak", 0)
            entry = cls(record["key"], record["result"], record["seconds"], unsigned, stages, peak)
            whole = record["check"] == entry.checksum and digest.hash_json(entry.key) == action
        except (AttributeError, ValueError, TypeError, KeyError, RecursionError):
            return None
        measured = _are_seconds([entry.seconds]) and _are_stages(stages) and _is_count(peak)
        return entry if whole and measured and fits_action(entry.key, entry.result) else None


def _are_stages(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(map(_STAGE.fullmatch, value))
        and _are_seconds(value.values())
    )


def _are_seconds(values: Iterable[Any]) -> bool:
    return all(type(each) in (int, float) and 0 <= each < 1e9 for each in values)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 60


def find_references(content: bytes) -> list[Digest]:
    """Find all strings in a JSON text that can be digests of blobs.

    Some may name something else; callers pass over what is not in the store.
    """
    return [Digest(name.decode()) for name in dict.fromkeys(_REFERENCE.findall(content))]


def find_blobs_of(entry: ActionEntry) -> list[Digest]:
    """Find what may be blobs in the result of an entry, which needs them; its key does not."""
    return find_references(digest.canonical_json(entry.result))
