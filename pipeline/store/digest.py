"""Content digests of bytes, files and JSON values, and the cache that spares hashing files again.

A digest is BLAKE3, 256 bits, as 64 lower-case hexadecimal digits. This module knows nothing of
what is hashed, and never uses `hash()`, `repr()` or pickle, whose output varies between processes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NewType

from blake3 import blake3

from pipeline.store.files import write_atomically

Digest = NewType("Digest", str)

# A file that changed this recently could change again within the resolution of its timestamps
# and keep its stat, so its digest is not remembered (git calls this "racily clean").
RACY_NS = 100_000_000
_MMAP_FROM = 1 << 20


def of_bytes(data: bytes | memoryview) -> Digest:
    return Digest(blake3(data).hexdigest())


def of_file(path: Path) -> Digest:
    hasher = blake3()
    if path.stat().st_size >= _MMAP_FROM:
        hasher.update_mmap(path)
    else:
        hasher.update(path.read_bytes())
    return Digest(hasher.hexdigest())


def canonical_json(value: Any) -> bytes:
    """The one spelling of a JSON value: sorted keys, no spaces, ASCII, no NaN."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def of_json(value: Any) -> Digest:
    return of_bytes(canonical_json(value))


class FileDigests:
    """What was computed from files, keyed by (size, mtime_ns, ctime_ns, inode) of each path.

    `of(path)` is the digest of the content; `derived` remembers any other JSON value that is a
    function of the content and of what is `given`, the latest one for each `what`. None is not
    remembered. `save()` writes what is new.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, dict[str, Any]] = _read_entries(path)
        self._changed = False

    def of(self, path: Path) -> Digest:
        return Digest(self.derived(path, "digest", of_file))

    def find(self, path: Path) -> Digest | None:
        """None where there is no such file, or none that can be read."""
        try:
            return self.of(path)
        except OSError:
            return None

    def derived(
        self, path: Path, what: str, compute: Callable[[Path], Any], given: str = ""
    ) -> Any:
        kept = self.traced(
            path,
            what,
            lambda path: None if (value := compute(path)) is None else [given, value],
            lambda kept: kept[0] == given,
        )
        return None if kept is None else kept[1]

    def traced(
        self,
        path: Path,
        what: str,
        compute: Callable[[Path], Any],
        holds: Callable[[Any], bool],
    ) -> Any:
        """As `derived`, for what depends on more than can be known before it is computed: the value
        itself tells what, and `holds` whether that is still so."""
        before = stamp(path)
        entry = self._entries.get(str(path))
        if entry is not None and entry["stamp"] == before and what in entry and holds(entry[what]):
            return entry[what]
        value = compute(path)
        unchanged = stamp(path) == before
        if value is not None and unchanged and time.time_ns() - max(before[1:3]) > RACY_NS:
            entry = self._entries.get(str(path))
            if entry is None or entry["stamp"] != before:
                _flush(path)
                entry = self._entries[str(path)] = {"stamp": before}
            entry[what] = value
            self._changed = True
        return value

    def save(self) -> None:
        """Remembering is a convenience: a folder that can't be written is not an error."""
        if not self._changed:
            return
        alive = {path: entry for path, entry in self._entries.items() if os.path.exists(path)}
        try:
            write_atomically(self._path, canonical_json(alive))
        except OSError:
            return
        self._changed = False


def _flush(path: Path) -> None:
    """What is remembered of a file must survive power loss only if its content does."""
    with suppress(OSError), open(path, "rb") as file:
        os.fsync(file.fileno())


def stamp(path: Path) -> list[int]:
    """Size, mtime, ctime and inode: two that are equal are of the same content, if it did not
    change within the resolution of the clock."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _read_entries(path: Path) -> dict[str, dict[str, Any]]:
    try:
        entries = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(entries, dict):
        return {}
    return {p: e for p, e in entries.items() if isinstance(e, dict) and "stamp" in e}
