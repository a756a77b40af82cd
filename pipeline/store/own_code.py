"""Digests of this package's own files, which are part of every key.

The digests are cached: they are valid while no file or folder has changed, which takes one `stat`
each to check, as for other distributions (`pipeline.store.distributions`). Nothing is cached if a
file could still change without changing its ctime.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pipeline.store.digest import hash_file
from pipeline.store.distributions import Record, cached_record, stamp_files

_TOPS = ("pipeline", "pte_pipeline")


def hash_own_files(base: Path) -> dict[str, str]:
    """Return the digests of this package's files in a folder, by relative path.

    These are the files below `pipeline/` and `pte_pipeline/`, including data files, sorted by path.

    Raises OSError.
    """

    def is_current(record: Record) -> bool:
        places = [*record["digests"], *record["folders"]]
        return bool(record["stamp"] == stamp_files(base, places))

    record = cached_record(base / "own", is_current, lambda: _hash_files(base))
    return dict(record["digests"])


def _hash_files(base: Path) -> Record:
    files: list[str] = []
    folders: list[str] = []
    for folder, names in _walk(base):
        folders.append(folder)
        files += [f"{folder}/{name}" for name in names]
    digests = {path: str(hash_file(base / path)) for path in sorted(files)}
    stamp = stamp_files(base, [*digests, *folders])
    return {"stamp": stamp, "folders": folders, "digests": digests}


def _walk(base: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder, and the names of the files in it.

    Python's cache folders are skipped, because their temporary files (`x.cpython-311.pyc.140213`)
    come and go while other processes import.
    """
    for top in _TOPS:
        for folder, folders, names in os.walk(base / top):
            folders[:] = [name for name in folders if name != "__pycache__"]
            yield Path(folder).relative_to(base).as_posix(), names
