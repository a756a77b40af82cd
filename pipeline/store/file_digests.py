"""A cache of digests of files, and of other values computed from files.

An entry is valid as long as the size, mtime, ctime and inode of its file stay the same.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from pipeline.store.digest import Digest, hash_file, hash_stream
from pipeline.store.files import (
    own_record_bytes,
    read_own_record,
    stat_file,
    write_atomically,
)

# A file that changed this recently could change again within the resolution of its timestamps
# and keep its stat, so nothing is cached for it (git calls this "racily clean").
RACY_NS = 100_000_000
_SECOND = 1_000_000_000  # ns


class FileDigests:
    """A cache of JSON values computed from files, in one JSON file or, without a path, in memory.

    None is not cached.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._changed = False
        self._new: set[str] = set()

    @cached_property
    def _entries(self) -> dict[str, dict[str, Any]]:
        record = {} if self._path is None else read_own_record(self._path)
        # In files of older versions, which have no "entries", their format is another one.
        entries: dict[str, dict[str, Any]] = record.get("entries", {})
        return entries

    def hash(self, path: Path) -> Digest:
        """Return the digest of a file's content. Raises OSError."""
        return Digest(self.cached(path, "digest", hash_file))

    def find(self, path: Path) -> Digest | None:
        """Return the digest of a file's content, or None if the file can't be read."""
        try:
            return self.hash(path)
        except OSError:
            return None

    def hash_open(self, path: Path, file: IO[bytes]) -> Digest:
        """Return the digest of an open file's content, even if its path now leads to another file.

        Raises OSError.
        """
        status = os.fstat(file.fileno())
        known_digest = self.find_cached(str(path), status)
        if known_digest:
            return known_digest
        file.seek(0)
        return hash_stream(file)

    def find_plain(self, path: str) -> Digest | None:
        """Return the digest of a regular file, or None if it is a link or can't be read."""
        try:
            status = os.lstat(path)
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return self.find_cached(path, status) or self.find(Path(path))

    def find_cached(self, path: str, status: os.stat_result) -> Digest | None:
        """Return the cached digest of a file whose stat was just taken, or None if there is none.

        Kept cheap, because it is called for thousands of files.
        """
        entry = self._entries.get(path)
        if (
            entry
            and entry["stat"] == stamp_of(status)
            and (content := entry.get("digest"))
        ):
            return Digest(content[1])
        return None

    def cached(
        self,
        path: Path,
        name: str,
        compute: Callable[[Path], Any],
        origin: str = "",
        is_valid: Callable[[Any], bool] = lambda value: True,
    ) -> Any:
        """Return `compute(path)`, or its cached value if `is_valid` accepts it.

        The value may depend only on the file's content and on `origin`. The latest value is cached
        for each path and name.
        """
        now = time.time_ns()  # before anything is read, which may take long
        before = read_stamp(path)
        entry = self._entries.get(str(path))
        if entry and entry["stat"] == before and name in entry:
            made_from, value = entry[name]
            if made_from == origin and is_valid(value):
                return value
        value = compute(path)
        unchanged = read_stamp(path) == before
        if value is not None and unchanged and is_settled(before, now):
            entry = self._entries.get(str(path))
            if entry is None or entry["stat"] != before:
                self._new.add(str(path))
                entry = self._entries[str(path)] = {"stat": before}
            entry[name] = [origin, value]
            self._changed = True
        return value

    def save(self) -> None:
        """Write new entries to disk. A folder that can't be written to is not an error."""
        if not self._changed or self._path is None:
            return
        alive = {
            path: entry for path, entry in self._entries.items() if os.path.exists(path)
        }
        for path in (
            self._new
        ):  # so that after power loss no entry outlives the content it describes
            with suppress(OSError), open(path, "rb") as file:
                os.fsync(file.fileno())
        self._new.clear()
        with suppress(OSError):
            write_atomically(
                self._path, own_record_bytes({"entries": alive}), self._path.parent
            )
            self._changed = False


def read_stamp(path: Path) -> list[int]:
    """Return the size, mtime in ns, ctime in ns and inode of a file. Raises OSError."""
    return stamp_of(stat_file(path))


def find_stamp(path: Path) -> list[int]:
    """Return the stamp of a file, or an empty list if it can't be read."""
    with suppress(OSError):
        return read_stamp(path)
    return []


def stamp_of(status: os.stat_result) -> list[int]:
    """Return the size, mtime in ns, ctime in ns and inode in a file's stat."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def is_settled(stamp: list[int], now: int) -> bool:
    """Return whether any further change to a file with this stamp would change the stamp.

    A ctime of whole seconds is not enough evidence: file systems such as ext3 and FAT keep no
    fraction, and images (squashfs, ISO 9660) may give all files the same time, so that two images
    share it.

    Args:
        now: the time in ns, taken before the file was read.
    """
    has_fraction = stamp[2] % _SECOND != 0
    return has_fraction and now - max(stamp[1:3]) > RACY_NS
