"""Hashing a file in the page cache, against hashing it with one call of the hash library."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from benchmarks.measure import BenchmarkError, Result, in_turns, rounded
from benchmarks.workspaces import Sizes
from pipeline.store import digest

LIMIT = 0.8


def hashing(folder: Path, sizes: Sizes) -> Result:
    path = folder / "file"
    size = sizes.megabytes << 20
    with open(path, "wb") as file:
        for _ in range(sizes.megabytes):
            file.write(os.urandom(1 << 20))

    def library(path: Path) -> str:
        return blake3(max_threads=1).update_mmap(path).hexdigest()

    if digest.hash_file(path) != library(path):  # also brings the file into the page cache
        raise BenchmarkError("the digest of a file is not that of its content")
    theirs, ours = in_turns(
        sizes.turns, lambda _: _seconds(library, path), lambda _: _seconds(digest.hash_file, path)
    )
    ratio = min(theirs) / min(ours)
    return Result(
        case="hashing",
        ratio=ratio,
        limit=LIMIT,
        ok=ratio >= LIMIT,
        measured=f"{ratio:.1%}",
        to_reach=f">= {LIMIT:.0%}",
        note=f"{size / min(ours) / 1e9:.2f} GB/s of {size / min(theirs) / 1e9:.2f} GB/s",
        figures={"bytes": size, "seconds": rounded(ours), "library_seconds": rounded(theirs)},
    )


def _seconds(hashing: Callable[[Path], str], path: Path) -> float:
    started = time.perf_counter()
    hashing(path)
    return time.perf_counter() - started
