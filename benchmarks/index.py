"""A store with a million results: the time for statistics, for similar results, and for eviction.

The files are generated, not built: results of preprocessing and of measuring in their real form, as
small as they get, a tenth of them with a separate blob. The index is made once, by reading all of
them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from benchmarks.measure import Result, run
from benchmarks.workspaces import Checkout, Sizes, new_checkout
from pipeline.features.cache.contents import statistics
from pipeline.features.cache.earlier_results import earlier_keys
from pipeline.features.cache.eviction import evict
from pipeline.store.digest import canonical_json, hash_bytes, hash_json
from pipeline.store.entries import ActionEntry
from pipeline.store.store import Store

STATISTICS, EXPLAIN = 1.0, 0.5  # target, in seconds
EVICTED = (100, 1000)  # numbers of results
_MODELS, _OWN_BLOBS = 1000, 10
# Calls a function of this module in a new process.
_CALL = "import sys; from benchmarks import index; print(index.{}({!r}, *map(int, sys.argv[1:])))"


def index(folder: Path, sizes: Sizes) -> Result:
    checkout = new_checkout(folder / "workspace")
    _make(checkout.store, sizes.entries)
    first = _timed(checkout, "ask")
    asked = min(_timed(checkout, "ask") for _ in range(sizes.repeats))
    command = min(checkout.doit("cache", "stats").cpu for _ in range(sizes.repeats))
    explained = min(_timed(checkout, "explain") for _ in range(sizes.repeats))
    gone = {number: _timed(checkout, "shrink", number) for number in EVICTED}
    after = _timed(checkout, "ask")
    # Work that doesn't depend on the number stays below ten times the time for a tenth.
    ok = command <= STATISTICS and explained <= EXPLAIN and gone[1000] <= 10 * gone[100]
    return Result(
        case="index",
        ratio=max(command / STATISTICS, explained / EXPLAIN),
        limit=1.0,
        ok=ok,
        measured=f"`doit cache stats` {command:.2f} CPU s, explain {explained:.2f} s, evicting "
        + ", ".join(f"{number} {seconds:.2f} s" for number, seconds in gone.items()),
        to_reach=f"<= {STATISTICS:g} s, {EXPLAIN:g} s, and in proportion",
        note=f"{sizes.entries:,} results; the index is made in {first:.0f} s; asking alone "
        f"{asked:.2f} s, and {after:.2f} s after an eviction",
        figures={"first": first, "asked": asked, "command": command, "explained": explained}
        | {f"evicting {number}": seconds for number, seconds in gone.items()}
        | {"asked after": after},
    )


def _timed(checkout: Checkout, function: str, *numbers: int) -> float:
    command = [sys.executable, "-c", _CALL.format(function, str(checkout.store))]
    done = run([*command, *map(str, numbers)], checkout.root, checkout.environment)
    return float(done.output)


def ask(root: str) -> float:
    """Return the seconds that the statistics of a store take."""
    began = time.perf_counter()
    statistics(Store(Path(root)))
    return time.perf_counter() - began


def explain(root: str) -> float:
    """Return the seconds it takes to read the results that are comparable with a missing one."""
    began = time.perf_counter()
    assert list(earlier_keys(Store(Path(root)), "measure", _key("measure", 0)))
    return time.perf_counter() - began


def shrink(root: str, number: int) -> float:
    """Return the seconds it takes to evict about `number` results once the index is up to date."""
    store = Store(Path(root))
    held = statistics(store)
    mean = held.size / sum(held.results.values())
    began = time.perf_counter()
    done = evict(store, int(held.size - number * mean))
    seconds = time.perf_counter() - began
    assert 0.5 * number < done.results < 2 * number, done
    return seconds


def _key(kind: str, number: int) -> dict[str, object]:
    names = {f"method{number % 7}": {"program": hash_json(number)}}
    return {"kind": kind, "model": f"model{number % _MODELS}", "programs": names, "number": number}


def _make(root: Path, entries: int) -> None:
    """Write the files of a store as `Store` does, but without flushing them."""
    store, now = Store(root), time.time()
    blob = store.put(b"a blob that many results name")
    for top in ("blobs", "actions"):
        for number in range(256):
            (root / top / f"{number:02x}").mkdir(parents=True, exist_ok=True)
    for number in range(entries):
        own = blob
        if number % _OWN_BLOBS == 0:
            content = json.dumps(number).encode()
            own = hash_bytes(content)
            store.blob_path(own).write_bytes(content)
        if number % 4:
            payload = {"processed_bytes": own, "handles": [1], "debug_handles": None, "named": None}
            key, result = _key("preprocess", number), dict[str, object](results=[payload])
        else:
            key, result = _key("measure", number), {"record": own, "blobs": [own]}
        entry = ActionEntry(key, result, 1.0)
        path = store.action_path(hash_json(key))
        path.write_bytes(canonical_json(entry.to_json()))
        used = now - entries + number
        os.utime(path, (used, used))
