"""Digests of this package's own files, which are part of every key.

The digests are cached: they are valid while no file or folder has changed, which takes one `stat`
each to check, as for other distributions (`pipeline.store.distributions`). Nothing is cached if a
file could still change without changing its ctime.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pipeline.store.digest import canonical_json, hash_bytes, hash_file
from pipeline.store.distributions import stamp_files
from pipeline.store.file_digests import RACY_NS
from pipeline.store.files import read_record, write_atomically

_TOPS = ("pipeline", "pte_pipeline")


def hash_own_files(base: Path) -> dict[str, str]:
    """Return the digests of this package's files in a folder, by relative path.

    These are the files below `pipeline/` and `pte_pipeline/`, including data files, sorted by path.

    Raises OSError.
    """
    cached = _cache_path(base)
    record = read_record(cached) or {}
    with suppress(
        LookupError, TypeError, AttributeError, OSError
    ):  # not a record that this function wrote
        digests = dict(record["digests"])
        if record["stamp"] == stamp_files(base, [*digests, *record["folders"]]):
            return digests
    started = time.time_ns()  # before anything is read
    files: list[str] = []
    folders: list[str] = []
    for folder, names in _walk(base):
        folders.append(folder)
        files += [f"{folder}/{name}" for name in names]
    digests = {path: str(hash_file(base / path)) for path in sorted(files)}
    stamp = stamp_files(base, [*digests, *folders])
    if started - stamp[-1] > RACY_NS:
        record = {"stamp": stamp, "folders": folders, "digests": digests}
        with suppress(OSError):  # recomputed each time if the cache can't be written
            write_atomically(cached, canonical_json(record))
    return digests


def _cache_path(base: Path) -> Path:
    from pipeline.store.places import default_root

    name = f"own-{hash_bytes(os.fsencode(base))[:16]}.json"
    return default_root() / "distributions" / name


def _walk(base: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder, and the names of the files in it.

    Python's cache folders are skipped, because their temporary files (`x.cpython-311.pyc.140213`)
    come and go while other processes import.
    """
    for top in _TOPS:
        for folder, folders, names in os.walk(base / top):
            folders[:] = [name for name in folders if name != "__pycache__"]
            yield Path(folder).relative_to(base).as_posix(), names
