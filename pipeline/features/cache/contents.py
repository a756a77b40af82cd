"""Counts what a store contains, and verifies its files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.features.cache.index_file import open_index
from pipeline.store.digest import Digest, hash_file
from pipeline.store.files import is_plain, remove
from pipeline.store.store import Store
from pipeline.store.usage import Moved, Usage, read_moved, read_usage


def _sizes(store: Store, folder: str) -> dict[Path, int]:
    """Return the size of each file in `blobs` or `actions`, except files that vanish meanwhile."""
    sizes = {}
    with suppress(OSError):  # a folder may vanish meanwhile
        for path in sorted((store.root / folder).glob("*/*")):
            with suppress(OSError):
                sizes[path] = path.lstat().st_size
    return sizes


def _digest_of(path: Path) -> Digest:
    """Return the digest by which a file of the store is named."""
    return Digest(path.parent.name + path.stem)


@dataclass(frozen=True)
class Stats:
    """The contents of a store; `results` are counts by kind of action."""

    blobs: int
    blob_bytes: int
    results: Mapping[str, int]
    result_bytes: int
    usage: Mapping[str, Usage]
    moved: Moved

    @property
    def size(self) -> int:
        return self.blob_bytes + self.result_bytes


def statistics(store: Store) -> Stats:
    """Return the statistics of a store, from its index."""
    with open_index(store) as index:
        (blobs, blob_bytes), results = index.blobs(), index.results()
    numbers = {kind: number for kind, (number, _) in results.items()}
    sizes = sum(size for _, size in results.values())
    used, moved = read_usage(store), read_moved(store)
    return Stats(blobs, blob_bytes, numbers, sizes, used, moved)


def find_unreadable(store: Store) -> list[str]:
    """Return the folders of a store that this user can't read."""
    folders = [store.root]
    for top in ("blobs", "actions"):
        folders.append(store.root / top)
        with suppress(OSError):
            folders += sorted((store.root / top).iterdir())
    return [str(f) for f in folders if os.path.isdir(f) and not os.access(f, os.R_OK)]


def count_files(store: Store) -> tuple[int, int]:
    """Return the number of files in a store, blobs and results together, and their bytes.

    Lists the files instead of asking the index.
    """
    sizes = _sizes(store, "blobs") | _sizes(store, "actions")
    return len(sizes), sum(sizes.values())


def verify(store: Store) -> dict[str, bool]:
    """Hash every file again, and remove those whose content doesn't match their name.

    Returns whether each of them could be removed, by its path in the store.
    """
    from concurrent.futures import ThreadPoolExecutor  # not needed by a no-op run

    blobs, results = _sizes(store, "blobs"), _sizes(store, "actions")
    with ThreadPoolExecutor() as threads:  # hashing lets other threads run
        good_blobs = threads.map(_is_whole, blobs)
        bad = [path for path, good in zip(blobs, good_blobs, strict=True) if not good]
    bad += [
        path for path in results if store.read_entry(path, _digest_of(path)) is None
    ]
    for path in bad:
        with suppress(OSError):
            remove(path)
    dropped = {}
    for path in bad:
        dropped[str(path.relative_to(store.root))] = not os.path.lexists(path)
    return dropped


def _is_whole(path: Path) -> bool:
    try:
        path.lstat()
        return is_plain(path) and hash_file(path) == _digest_of(path)
    except FileNotFoundError:  # evicted meanwhile
        return True
    except OSError:
        return False
