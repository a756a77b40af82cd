"""Evicts the least recently used files from a store."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.features.cache.index import Index
from pipeline.features.cache.index_file import open_index
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError
from pipeline.store.files import clear_place, remove, sweep
from pipeline.store.leases import FOLDER
from pipeline.store.places import describe_remedy
from pipeline.store.store import Store


@dataclass
class Evicted:
    """The outcome of an eviction, in bytes. `busy` means that another eviction was in progress."""

    results: int = 0
    blobs: int = 0
    size: int = 0
    left: int = 0
    in_use: int = 0
    busy: bool = False


def evict(store: Store, cap: int) -> Evicted:
    """Remove the files of killed processes, and evict until at most `cap` bytes are left.

    The unit is an action's result together with the blobs that no other result names; the least
    recently used goes first. Whatever a running build has used stays, even above the cap. Results
    are removed before their blobs, so a kill may leave blobs without a result, but never a result
    without its blobs.

    Raises PipelineError if the store can't be written.
    """
    from filelock import FileLock, Timeout

    if not os.path.exists(store.root):
        return Evicted()
    store = Store(store.root)  # without an overflow, whose files have the same names
    try:
        clear_place(store.root / ".gc.lock")
        with FileLock(store.root / ".gc.lock", timeout=0):
            sweep(store.root / "tmp")
            for path in (store.root / "locks").glob("*"):
                with suppress(Timeout, OSError):
                    clear_place(path)
                    with FileLock(path, timeout=0):
                        path.unlink(missing_ok=True)
            return _evict(store, cap)
    except Timeout:
        return Evicted(busy=True)
    except OSError as error:
        raise PipelineError(
            describe_remedy(store.root, f"can't be written ({error.strerror})")
        ) from error


def _evict(store: Store, cap: int) -> Evicted:
    since = _find_earliest_lease(store)
    with open_index(store) as index:
        if index.size() <= cap:
            return Evicted(left=index.size())
        with index.removing():
            evicted = Evicted(left=index.size())
            while evicted.left > cap and (blob := index.oldest_loose(since)):
                _drop_blob(store, index, *blob, evicted)
            while evicted.left > cap and (result := index.oldest(since)):
                digest, size = result
                is_removed = _drop(store.action_path(digest), size, evicted)
                evicted.results += is_removed
                index.forget("results", digest, is_removed)
                while blob := index.oldest_loose(since):  # named only by this result
                    _drop_blob(store, index, *blob, evicted)
        if evicted.left > cap:
            evicted.in_use = index.used_since(since)
    return evicted


def _drop_blob(
    store: Store, index: Index, blob: Digest, size: int, evicted: Evicted
) -> None:
    is_removed = _drop(store.blob_path(blob), size, evicted)
    evicted.blobs += is_removed
    index.forget("blobs", blob, is_removed)


def _drop(path: Path, size: int, evicted: Evicted) -> bool:
    """Remove a file. Returns whether it is gone."""
    try:
        remove(path)
    except OSError:
        return False
    evicted.left -= size
    evicted.size += size
    return True


def _find_earliest_lease(store: Store) -> float:
    """Return when the oldest running build began, in seconds since the epoch, or infinity."""
    folder = store.root / FOLDER
    sweep(folder)
    times = [float("inf")]
    for path in folder.glob(".*"):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return min(times)
