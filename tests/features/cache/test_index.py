"""The index of a store agrees with the files, whatever happened to either."""

import os
import sqlite3
import time
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.features.cache import eviction, index_file
from pipeline.features.cache import index as module
from pipeline.features.cache.contents import statistics
from pipeline.features.cache.earlier_results import earlier_keys
from pipeline.features.cache.eviction import evict
from pipeline.features.cache.index import Index, subject
from pipeline.features.cache.index_file import FILE, open_index
from pipeline.store.digest import hash_bytes
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store
from tests.features.cache.test_eviction import put


def seen(index):
    """Return everything that an index says about the files, apart from its internal numbers."""
    names = "select blob, digest from names join results on id = result"
    sql = index._sql
    return (
        sorted(sql.execute("select digest, size, inode, named from blobs")),
        sorted(sql.execute("select digest, size, inode, kind, about, seconds from results")),
        sorted(sql.execute(names)),
    )


def afresh(store):
    """Return the content of an index that is built now."""
    with closing(index_file._prepare(store, sqlite3.connect(":memory:"))) as connection:
        return seen(Index(store, connection))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


NAMES = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.just("put"), NAMES),
    st.tuples(st.just("share"), NAMES),
    st.tuples(st.just("drop result"), NAMES),
    st.tuples(st.just("drop blob"), NAMES),
    st.tuples(st.just("evict"), NAMES),
    st.tuples(st.just("look"), NAMES),
)


@pytest.fixture(scope="module", autouse=True)
def _fast_clock():
    """Treat folders as settled as soon as the file system's clock ticks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RACY_NS", 10_000_000)
        patch.setattr(module, "_SETTLING", 0.012)
        yield


@settings(max_examples=40)
@given(st.lists(STEPS, max_size=14))
def test_an_index_follows_its_files(tmp_path_factory, steps):
    store = Store(tmp_path_factory.mktemp("store"))
    made = {}
    for step, number in steps:
        if step == "put":
            made[number] = put(store, str(number), 50, number * 100)
        elif step == "share" and number in made:
            store.put_result({"k": number}, {"blobs": [made[number][1]]})
        elif step == "drop result" and number in made:
            store.action_path(made[number][0]).unlink(missing_ok=True)
        elif step == "drop blob" and number in made:
            store.blob_path(made[number][1]).unlink(missing_ok=True)
        elif step == "evict":
            evict(store, number * 100)
        elif step == "look":
            with open_index(store):
                pass
    with open_index(store) as index:
        assert seen(index) == afresh(store)


@pytest.mark.parametrize("damage", [b"", b"no database at all" * 100, "folder", "version", "table"])
def test_a_damaged_index_is_made_anew(store, damage):
    put(store, "a", 100, 0)
    with open_index(store) as index:
        before = seen(index)
    path = store.root / FILE
    if damage == "folder":
        path.unlink()
        path.mkdir()
    elif isinstance(damage, bytes):
        path.write_bytes(damage)
    else:
        words = {"version": "pragma user_version = 99", "table": "drop table names"}
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(words[damage])
    with open_index(store) as index:
        assert seen(index) == before == afresh(store)


def listed(store, monkeypatch):
    """Return the folders of files that a query of the index lists."""
    found, scandir = [], os.scandir
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "scandir", lambda path: found.append(path) or scandir(path))
        with open_index(store):
            pass
    return {path.name for path in found} - {"blobs", "actions"}


def test_a_folder_that_did_not_change_is_not_listed(store, monkeypatch):
    for number in range(20):
        put(store, str(number), 10, 0)
    for path in store.root.glob("*/*"):
        os.utime(path, (1e9, 1e9))
    with open_index(store) as index:
        assert index.blobs()[0] == 20
    assert not listed(store, monkeypatch)


def test_after_an_eviction_no_folder_is_listed(store, monkeypatch):
    for number in range(20):
        put(store, str(number), 100, 100 - number)
    time.sleep(0.05)
    with open_index(store) as index:
        size = index.size()
    done = evict(store, size // 2)
    assert done.results > 5 and done.blobs > 5
    assert not listed(store, monkeypatch)
    with open_index(store) as index:
        assert seen(index) == afresh(store) and index.size() == done.left


@pytest.mark.parametrize("place", ["the same folder", "another folder"])
def test_what_somebody_puts_there_during_an_eviction_is_seen(store, monkeypatch, place):
    made = [put(store, str(number), 100, 100 - number) for number in range(8)]
    time.sleep(0.05)
    folder = made[0][1][:2]
    content = next(
        data
        for data in (str(number).encode() for number in range(100_000))
        if (hash_bytes(data)[:2] == folder) is (place == "the same folder")
    )
    remove = eviction.remove

    def put_meanwhile(path):
        remove(path)
        if path == store.blob_path(made[0][1]):
            Store(store.root).put(content)

    monkeypatch.setattr(eviction, "remove", put_meanwhile)
    assert evict(store, 400).blobs >= 1
    assert store.blob_path(hash_bytes(content)).exists()
    with open_index(store) as index:
        assert seen(index) == afresh(store)


def test_what_could_not_be_removed_is_still_there(store, monkeypatch):
    for number in range(8):
        put(store, str(number), 100, 100 - number)
    time.sleep(0.05)

    def refuse(path):
        raise PermissionError(path)

    with monkeypatch.context() as patch:
        patch.setattr(eviction, "remove", refuse)
        assert evict(store, 400).size == 0
    with open_index(store) as index:
        assert seen(index) == afresh(store) and index.blobs()[0] == 8


def test_an_index_that_is_kept_by_another_process_is_done_without(store, monkeypatch):
    put(store, "a", 100, 0)
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda place, timeout=0: connect(place, timeout=0))
    with open_index(store):
        pass
    with closing(connect(store.root / FILE)) as other:
        other.execute("begin exclusive")
        inode = (store.root / FILE).stat().st_ino
        with open_index(store) as index:
            assert index.blobs()[0] == 1
        assert (store.root / FILE).stat().st_ino == inode  # left to the other connection


def test_keys_that_can_be_compared_are_found(store):
    first = {"kind": "compile", "model": "m", "methods": {"a": 1}}
    alike = {"kind": "compile", "model": "m", "methods": {"a": 2}}
    others = [
        {"kind": "link", "model": "m", "methods": {"a": 1}},
        {"kind": "compile", "model": "m", "methods": {"a": 1, "b": 1}},
        {"kind": "compile", "model": "n", "methods": {"a": 1}},
    ]
    assert subject(first) == subject(alike) not in map(subject, others[1:])
    digests = {}
    for age, key in enumerate([first, alike, *others]):
        key = {**key, "kind": f"k{key['kind']}"}  # results of this kind have no form
        digests[age] = store.put_result(key, {})
        os.utime(store.action_path(digests[age]), (1000 + age, 1000 + age))
    found = earlier_keys(store, "kcompile", {**first, "kind": "kcompile"})
    assert [digest for digest, _ in found] == [digests[1], digests[0]]


def test_damage_that_shows_late_is_one_line(store):
    for number in range(300):
        store.put_result({"k": number}, {"x": str(number) * 50})
    with open_index(store):
        pass
    path = store.root / FILE
    content = bytearray(path.read_bytes())
    content[8192:] = bytes(len(content) - 8192)
    path.write_bytes(content)
    for folder in store.root.glob("actions/*"):
        os.utime(folder, (1e9, 1e9))
    try:
        statistics(store)
    except PipelineError as error:
        assert "run this again" in str(error) and "\n" not in str(error)
    assert statistics(store).results == {"None": 300}


def test_no_store_needs_no_index(tmp_path):
    store = Store(tmp_path / "none")
    with open_index(store) as index:
        assert index.size() == 0 and index.oldest(float("inf")) is None
    assert not store.root.exists()
