"""Maintenance of a store: statistics, verification, and eviction that respects running builds."""

import os
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.features.cache import eviction, index
from pipeline.features.cache.contents import count_files, statistics, verify
from pipeline.features.cache.eviction import evict
from pipeline.store import digest
from pipeline.store.entries import find_references
from pipeline.store.leases import lease
from pipeline.store.store import Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def put(store, name, size, age, blobs=()):
    """Put a result with a separate blob, last used `age` seconds ago."""
    blob = store.put(name.encode().ljust(size, b"."))
    key = {"kind": "test", "name": name}
    action = store.put_result(key, {"blobs": [blob, *blobs]}, seconds=1.5)
    when = time.time() - age
    for path in (store.blob_path(blob), store.action_path(action)):
        os.utime(path, (when, when))
    return action, blob


def total(store):
    return statistics(store).size


def test_statistics(store):
    put(store, "a", 100, 0)
    put(store, "b", 200, 0)
    store.put_result({"kind": "other"}, {})
    found = statistics(store)
    assert (found.blobs, found.blob_bytes) == (2, 300)
    assert found.results == {"test": 2, "other": 1}
    assert found.size == 300 + found.result_bytes > 300


def test_statistics_of_a_store_that_is_not_there(store):
    found = statistics(store)
    assert (found.blobs, found.size, dict(found.results)) == (0, 0, {})
    assert not store.root.exists()


# Verification


def test_verify_drops_what_is_bad_and_nothing_else(store):
    good, good_blob = put(store, "good", 10, 0)
    bad, bad_blob = put(store, "bad", 10, 0)
    for path in (store.blob_path(bad_blob), store.action_path(bad)):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-1])
    files, _ = count_files(store)
    assert files == 4
    assert verify(store) == {
        str(store.blob_path(bad_blob).relative_to(store.root)): True,
        str(store.action_path(bad).relative_to(store.root)): True,
    }
    assert verify(store) == {}
    assert store.get(good) and store.has(good_blob)
    assert store.get(bad) is None and not store.has(bad_blob)


def test_file_with_another_name_is_bad(store):
    path = store.root / "blobs" / "ab" / "cdef"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    assert verify(store) == {"blobs/ab/cdef": True}


# Eviction


def test_nothing_goes_below_the_cap(store):
    put(store, "a", 100, 1000)
    done = evict(store, total(store))
    assert (done.results, done.blobs, done.size) == (0, 0, 0)


def test_least_recently_used_goes_first(store):
    old, old_blob = put(store, "old", 1000, 3000)
    middle, middle_blob = put(store, "middle", 1000, 2000)
    new, new_blob = put(store, "new", 1000, 1000)
    done = evict(store, total(store) - 1500)
    assert done.left == total(store)
    assert [store.has(b) for b in (old_blob, middle_blob, new_blob)] == [False, False, True]
    assert [bool(store.get(a)) for a in (old, middle, new)] == [False, False, True]
    assert (done.results, done.blobs) == (2, 2)


def test_use_keeps_a_result(store):
    first, _ = put(store, "first", 1000, 3000)
    second, _ = put(store, "second", 1000, 2000)
    assert store.get(first)
    evict(store, total(store) - 500)
    assert store.get(first)
    assert store.get(second) is None


def test_blob_of_several_results_stays_until_the_last_one_goes(store):
    shared = store.put(b"shared" * 100)
    put(store, "old", 10, 3000, [shared])
    new, _ = put(store, "new", 10, 1000, [shared])
    os.utime(store.blob_path(shared), (0, 0))
    evict(store, total(store) - 5)
    assert store.get(new) and store.has(shared)
    evict(store, 0)
    assert not store.has(shared)
    assert total(store) == 0


def test_blobs_without_a_result_go_first(store):
    orphan = store.put(b"x" * 500)
    kept, blob = put(store, "kept", 100, 5000)
    time.sleep(0.02)
    evict(store, total(store) - 100)
    assert not store.has(orphan)
    assert store.get(kept) and store.has(blob)


def test_time_in_the_future_keeps_nothing_for_ever(store):
    ahead, _ = put(store, "ahead", 1000, -(10**8))
    put(store, "now", 1000, 0)
    evict(store, 0)
    assert store.get(ahead) is None


def test_what_a_build_under_way_used_stays_above_the_cap(store):
    unused, unused_blob = put(store, "unused", 1000, 3000)
    used, used_blob = put(store, "used", 1000, 3000)
    with lease(store):
        assert store.get(used)
        making = store.put(b"not yet named by any result")
        done = evict(store, 0)
        assert done.in_use
        assert store.get(used) and store.has(used_blob) and store.has(making)
        assert store.get(unused) is None and not store.has(unused_blob)
    evict(store, 0)
    assert total(store) == 0


def test_put_of_what_is_there_counts_as_use(store):
    _, blob = put(store, "a", 100, 3000)
    with lease(store):
        store.put(b"a".ljust(100, b"."))
        store.action_path(store.put_result({"k": 1}, {})).unlink()
        for path in (store.root / "actions").rglob("*.json"):
            path.unlink()
        evict(store, 0)
        assert store.has(blob)


HOLDER = (
    "import sys, time; from pathlib import Path; from pipeline.store.store import Store\n"
    "from pipeline.store.leases import lease\n"
    "with lease(Store(Path(sys.argv[1]))):\n"
    "    print('held', flush=True); time.sleep(60)\n"
)


def test_lease_ends_with_its_process_however_it_ends(store):
    put(store, "a", 1000, 0)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store.root)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    action, _ = put(store, "b", 1000, -1)
    assert evict(store, 0).in_use
    assert store.get(action)
    process.kill()
    process.wait(10)
    evict(store, 0)
    assert store.get(action) is None
    assert not list((store.root / "runs").iterdir())


def test_leftovers_of_killed_processes_go(store):
    put(store, "a", 10, 0)
    (store.root / "tmp").mkdir(exist_ok=True)
    (store.root / "tmp" / ".tmp-1-dead").write_bytes(b"half a blob")
    (store.root / "tmp" / ".tmp-1-empty").write_bytes(b"")
    (store.root / "locks").mkdir(exist_ok=True)
    (store.root / "locks" / "dead").write_bytes(b"")
    with store.writer() as file, store.lock("alive"):
        file.write(b"alive")
        evict(store, 10**9)
        assert [path.name for path in (store.root / "locks").iterdir()] == ["alive"]
    assert store.read(file.digest) == b"alive"
    assert not list((store.root / "tmp").iterdir())
    assert not list((store.root / "locks").iterdir())


def test_two_evictions_do_not_meet(store):
    put(store, "a", 10, 0)
    busy = []
    original = eviction._evict

    def meanwhile(*arguments):
        busy.append(evict(store, 0).busy)
        return original(*arguments)

    eviction._evict = meanwhile
    try:
        evict(store, 0)
    finally:
        eviction._evict = original
    assert busy == [True]


def test_eviction_of_a_store_that_is_not_there(store):
    assert evict(store, 0).size == 0
    assert not store.root.exists()


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, 10**6)), min_size=1, max_size=8),
    st.integers(0, 4000),
)
def test_eviction_keeps_whole_results_the_newest_within_the_cap(tmp_path_factory, entries, cap):
    store = Store(tmp_path_factory.mktemp("store"))
    made = [put(store, str(number), *entry) for number, entry in enumerate(entries)]
    ages = [age for _, age in entries]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_SETTLING", 0)  # tests/store/test_index.py waits
        done = evict(store, cap)
    assert done.left == total(store) <= cap
    kept = [store.read_entry(store.action_path(a), a) is not None for a, _ in made]
    for (_, blob), there in zip(made, kept, strict=True):
        assert store.has(blob) == there
    if any(kept) and not all(kept):
        oldest_kept = max(age for age, there in zip(ages, kept, strict=True) if there)
        newest_gone = min(age for age, there in zip(ages, kept, strict=True) if not there)
        assert oldest_kept <= newest_gone


def test_references_are_found_at_any_depth():
    a, b = "a" * 64, "0" * 64
    value = {"x": [a, {"y": (b, 3, None, "z" * 64, a[:-1])}], a: 1}
    assert set(find_references(digest.canonical_json(value))) == {a, b}
