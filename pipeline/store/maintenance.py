"""Care of a store: what is in it, whether it is sound, how often it helped, and eviction."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.store import digest
from pipeline.store.digest import Digest
from pipeline.store.files import sweep, temporary, write_atomically
from pipeline.store.store import Store

# The level of the key of each kind of action: the raw bytes of a source, a program, a partition.
LEVELS = {
    "programs": 1,
    "reads": 1,
    "export": 1,
    "quantize": 2,
    "compile": 2,
    "link": 2,
    "validate": 2,
    "preprocess": 3,
}
_REFERENCE = re.compile(rb'"([0-9a-f]{64})"')


# How often it helped


@dataclass
class Usage:
    """Of one kind of action: `saved` are the seconds that the hits took when they were computed,
    `spent` those that the misses took."""

    hits: int = 0
    misses: int = 0
    saved: float = 0.0
    spent: float = 0.0

    def add(self, other: Usage) -> None:
        for name, value in vars(other).items():
            setattr(self, name, round(getattr(self, name) + value, 3))


Usages = dict[str, Usage]


def read_usage(store: Store) -> Usages:
    """By kind of action, over all runs that used this store; empty where nothing is known."""
    try:
        data = json.loads((store.root / "usage.json").read_bytes())
        return {kind: Usage(**counts) for kind, counts in data.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def add_usage(store: Store, more: Mapping[str, Usage]) -> None:
    """Counting is a convenience: a store that can't be written counts nothing."""
    with suppress(OSError), store.lock("usage"):
        total = read_usage(store)
        for kind, usage in more.items():
            total.setdefault(kind, Usage()).add(usage)
        data = {kind: vars(usage) for kind, usage in total.items()}
        write_atomically(store.root / "usage.json", digest.canonical_json(data))


# What is in it


@dataclass(frozen=True)
class _File:
    path: Path
    digest: Digest
    size: int
    used: float  # seconds since the epoch


def _files(folder: Path, suffix: str = "") -> Iterator[_File]:
    """The files of `blobs` or `actions`; one that vanishes meanwhile is passed over."""
    with suppress(OSError):
        for inner in sorted(entry.path for entry in os.scandir(folder) if entry.is_dir()):
            for entry in os.scandir(inner):
                with suppress(OSError):
                    stat = entry.stat()
                    name = Path(inner).name + entry.name.removesuffix(suffix)
                    yield _File(Path(entry.path), Digest(name), stat.st_size, stat.st_mtime)


def _blobs(store: Store) -> Iterator[_File]:
    return _files(store.root / "blobs")


def _results(store: Store) -> Iterator[_File]:
    return _files(store.root / "actions", ".json")


@dataclass(frozen=True)
class Stats:
    blobs: int
    blob_bytes: int
    results: Mapping[str, int]
    result_bytes: int
    usage: Mapping[str, Usage]

    @property
    def size(self) -> int:
        return self.blob_bytes + self.result_bytes


def statistics(store: Store) -> Stats:
    blobs = [file.size for file in _blobs(store)]
    results = list(_results(store))
    kinds: Counter[str] = Counter()
    for file in results:
        entry = store.entry_at(file.path, file.digest)
        kinds[str(entry.key.get("kind")) if entry else "damaged"] += 1
    return Stats(
        len(blobs), sum(blobs), kinds, sum(file.size for file in results), read_usage(store)
    )


def earlier_keys(store: Store, kind: str) -> Iterator[tuple[Digest, Mapping[str, Any]]]:
    """The keys of all results of a kind, the latest used first."""
    for file in sorted(_results(store), key=lambda file: -file.used):
        entry = store.entry_at(file.path, file.digest)
        if entry is not None and entry.key.get("kind") == kind:
            yield file.digest, entry.key


# Whether it is sound


@dataclass(frozen=True)
class Verified:
    """`bad` are the files, by their path in the store, that were dropped, and `stuck` those of
    them that could not be."""

    files: int
    size: int
    bad: tuple[str, ...]
    stuck: tuple[str, ...]


def verify(store: Store) -> Verified:
    """Hashes every file again, and drops those that are not what their name says."""
    from concurrent.futures import ThreadPoolExecutor  # which a no-op run does without

    blobs, results = list(_blobs(store)), list(_results(store))
    with ThreadPoolExecutor() as threads:  # hashing lets other threads run
        good_blobs = threads.map(_is_whole, blobs)
        bad = [file for file, good in zip(blobs, good_blobs, strict=True) if not good]
    bad += [f for f in results if store.entry_at(f.path, f.digest) is None]
    for file in bad:
        with suppress(OSError):
            file.path.unlink(missing_ok=True)
    names = [str(file.path.relative_to(store.root)) for file in bad]
    return Verified(
        files=len(blobs) + len(results),
        size=sum(file.size for file in (*blobs, *results)),
        bad=tuple(names),
        stuck=tuple(name for name in names if (store.root / name).exists()),
    )


def _is_whole(file: _File) -> bool:
    try:
        return digest.of_file(file.path) == file.digest
    except FileNotFoundError:  # evicted meanwhile
        return True
    except OSError:
        return False


# Eviction


@contextmanager
def lease(store: Store) -> Iterator[None]:
    """While it lasts, nothing of the store that is used from now on is evicted by anyone."""
    with ExitStack() as held:
        with suppress(OSError):  # a store that can't be written, where nothing is evicted either
            held.enter_context(temporary(store.root / "runs"))
        yield


@dataclass
class Evicted:
    """What an eviction removed and left; sizes in bytes. `busy`: another one was under way."""

    results: int = 0
    blobs: int = 0
    size: int = 0
    left: int = 0
    in_use: int = 0
    busy: bool = False


def evict(store: Store, cap: int) -> Evicted:
    """Removes what was least recently used until at most `cap` bytes are left, and what killed
    processes left behind.

    The unit is an action's result with the blobs that no other result names. What a build that is
    under way has used stays, even above the cap. The order of removal is such that a kill leaves
    blobs without a result, never a result without its blobs.
    """
    from filelock import FileLock, Timeout

    if not store.root.exists():
        return Evicted()
    lock = FileLock(store.root / ".gc.lock", timeout=0)
    try:
        with lock:
            _sweep(store)
            return _evict(store, cap)
    except Timeout:
        return Evicted(busy=True)


def _evict(store: Store, cap: int) -> Evicted:
    since = _earliest_lease(store)
    blobs = {file.digest: file for file in _blobs(store)}
    results = list(_results(store))
    done = Evicted(left=sum(file.size for file in (*blobs.values(), *results)))
    if done.left <= cap:
        return done
    named = {file.digest: [d for d in _named(file) if d in blobs] for file in results}
    holders = Counter(blob for names in named.values() for blob in names)
    now = time.time()

    def drop(file: _File) -> bool:
        try:
            file.path.unlink(missing_ok=True)
        except OSError:
            return False
        done.left -= file.size
        done.size += file.size
        return True

    def drop_blob(file: _File) -> None:
        if file.used >= since:
            done.in_use += file.size
        elif drop(file):
            done.blobs += 1

    # A clock that once stood in the future must not keep a file for ever.
    orphans = [file for digest, file in blobs.items() if not holders[digest]]
    for file in sorted(orphans, key=lambda file: min(file.used, now)):
        if done.left > cap:
            drop_blob(file)
    for file in sorted(results, key=lambda file: min(file.used, now)):
        if done.left <= cap:
            break
        if file.used >= since:
            done.in_use += file.size
        elif drop(file):
            done.results += 1
            for blob in named[file.digest]:
                holders[blob] -= 1
                if not holders[blob]:
                    drop_blob(blobs[blob])
    return done


def _named(file: _File) -> set[Digest]:
    """All digests in a result's file: the blobs that it needs, and others that do no harm."""
    try:
        return {Digest(name.decode()) for name in _REFERENCE.findall(file.path.read_bytes())}
    except OSError:
        return set()


def _earliest_lease(store: Store) -> float:
    """When the oldest of the builds that are under way began; later than now where none is."""
    folder = store.root / "runs"
    sweep(folder)
    times = [float("inf")]
    for path in folder.glob(".*"):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return min(times)


def _sweep(store: Store) -> None:
    """Removes the temporary files and locks of killed processes."""
    from filelock import FileLock, Timeout

    sweep(store.root / "tmp")
    for path in (store.root / "locks").glob("*"):
        with suppress(Timeout, OSError), FileLock(path, timeout=0):
            path.unlink(missing_ok=True)
