"""Digests of this package's own files, which are part of every key.

The digests are cached: they are valid while the size, times and inode of every file and folder stay
the same, which takes one `stat` each to check, as for other distributions
(`pipeline.store.distributions`). Nothing is cached if a file could still change without changing
its times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from pipeline.store.digest import canonical_json, hash_bytes, hash_file, hash_json
from pipeline.store.file_digests import is_settled, stamp_of
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
        if record["stamps"] == hash_json(_read_stamps(base, record["places"])):
            return dict(record["digests"])
    started = time.time_ns()  # before anything is read
    files: list[str] = []
    folders: list[str] = []
    for folder, names in _walk(base):
        folders.append(folder)
        files += [f"{folder}/{name}" for name in names]
    places = [*sorted(files), *sorted(folders)]
    stamps = _read_stamps(base, places)
    digests = {path: str(hash_file(base / path)) for path in sorted(files)}
    if all(is_settled(stamp, started) for stamp in stamps) and (
        _read_stamps(base, places) == stamps
    ):
        record = {"stamps": hash_json(stamps), "places": places, "digests": digests}
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


def _read_stamps(base: Path, places: Iterable[str]) -> list[list[int]]:
    """Return the size, times and inode of each file and folder. Raises OSError."""
    return [stamp_of(os.stat(f"{base}/{place}")) for place in places]
