"""A store that is readable but not writable: another user's, mounted read-only, on a full disk."""

import errno
import os
import shutil

import pytest

from pipeline.features.cache.contents import find_unreadable, statistics, verify
from pipeline.features.cache.eviction import evict
from pipeline.store import blobs, folder
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store
from tests.support.forked import run_doit, run_in_fork
from tests.support.permissions import folders_of, mode, obey_permissions

KEY = {"kind": "thing", "n": 1}


@pytest.mark.parametrize("root", ["/proc/store", "file", "file/store"])
def test_a_store_whose_folder_can_not_be_made_is_not_used(tmp_path, root):
    (tmp_path / "file").write_bytes(b"")
    store = Store(tmp_path / root, overflow=tmp_path / "build" / ".store")
    blob = store.put(b"new")
    assert store.read(blob) == b"new"
    assert str(tmp_path / root) in store.why_overflow()
    assert (tmp_path / "file").read_bytes() == b""
    with pytest.raises(OSError):
        Store(tmp_path / root).put(b"new")


@pytest.fixture
def obeying(tmp_path):
    """Return a function that calls another one in a process that obeys permissions."""

    def call(function):
        def work():
            obey_permissions()
            function()

        log = tmp_path / "log.txt"
        assert run_in_fork(work, log) == 0, log.read_text()

    return call


@pytest.mark.parametrize("top", ["", "tmp", "blobs", "blobs/*", "actions", "actions/*"])
def test_what_a_store_can_not_take_goes_to_the_overflow(tmp_path, obeying, top):
    root, overflow = tmp_path / "store", tmp_path / "build" / ".store"
    other = Store(root)
    kept = [other.put(bytes([n])) for n in range(255)]
    for n in range(255):
        other.put_result({**KEY, "n": -n}, {})

    def use():
        store = Store(root, overflow=overflow)
        assert store.read(kept[0]) == b"\0"
        for n in range(20):
            blob = store.put(f"new {n}".encode())
            action = store.put_result({**KEY, "n": n + 1}, {"blob": blob})
            assert store.get(action).result == {"blob": blob}
            assert store.read(blob) == f"new {n}".encode() and store.intact([blob])
        with store.writer() as file:
            file.write(b"in pieces")
        assert Store(root, overflow=overflow).read(file.digest) == b"in pieces"
        assert "Permission denied" in store.why_overflow()

    folders = [root, *root.glob("*/")] if not top else [p for p in root.glob(top) if p.is_dir()]
    with mode(folders, 0o555):
        obeying(use)
    assert overflow.is_dir()


def test_a_store_that_can_not_be_read_is_empty(tmp_path, obeying):
    root, overflow = tmp_path / "store", tmp_path / "build" / ".store"
    blob = Store(root).put(b"kept")

    def use():
        store = Store(root, overflow=overflow)
        assert not store.intact([blob]) and store.put(b"kept") == blob
        assert store.read(blob) == b"kept" and statistics(store).blobs == 0
        assert find_unreadable(store)

    with mode([root], 0o000):
        obeying(use)
    shutil.rmtree(overflow)
    with mode([*root.glob("blobs/*")], 0o000):
        obeying(use)
    assert not find_unreadable(Store(root))


def test_a_bad_blob_that_can_not_be_dropped_is_made_anew(tmp_path, obeying):
    root, overflow = tmp_path / "store", tmp_path / "build" / ".store"
    blob = Store(root).put(b"good")
    path = Store(root).blob_path(blob)
    os.chmod(path, 0o644)
    path.write_bytes(b"bad")

    def use():
        store = Store(root, overflow=overflow)
        assert not store.intact([blob])
        assert store.put(b"good") == blob and store.read(blob) == b"good"
        [(name, is_dropped)] = verify(store).items()
        assert not is_dropped
        assert blob[2:] in name

    with mode(folders_of(root), 0o555):
        obeying(use)


def test_a_full_disk(tmp_path, monkeypatch):
    """One is full from the start, the other fills up while a blob is written."""
    root, overflow = tmp_path / "store", tmp_path / "build" / ".store"
    store = Store(root, overflow=overflow)
    written = blobs._write

    def write(file, data):
        if str(overflow) not in file.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
        return written(file, data)

    monkeypatch.setattr(blobs, "_write", write)
    assert store.read(store.put(b"while it is written")) == b"while it is written"
    assert "No space left on device" in store.why_overflow()
    monkeypatch.setattr(blobs, "_write", written)
    monkeypatch.setattr(folder, "_is_full", lambda root: True)
    full = Store(root, overflow=overflow)
    assert full.read(full.put(b"full")) == b"full"


def test_without_an_overflow_the_error_stays(tmp_path, obeying):
    root = tmp_path / "store"
    Store(root).put(b"kept")

    def use():
        for overflow in (None, tmp_path / "store" / "also"):
            with pytest.raises(PermissionError):
                Store(root, overflow=overflow).put(b"new")

    with mode(folders_of(root), 0o555):
        obeying(use)


def test_a_build_reads_what_it_can_and_keeps_the_rest_beside_its_packages(built):
    environment = built.environment

    def doit(*words):
        return run_doit(built.root, words, environment, 300, obey_permissions)

    built.edit("models/pair.py", "- 1.0", "- 2.0")
    before = {path for path in built.store.rglob("*") if path.is_file()}
    with mode(folders_of(built.store), 0o555):
        code, output = doit()
        assert code == 0, output
        outcomes = built.outcomes()
        assert outcomes["compile pair/encode"] == "up-to-date"
        assert outcomes["compile pair/decode"] == "built"
        [told] = [line for line in output.splitlines() if "can't be written" in line]
        assert f"store {built.store}" in told and "Permission denied" in told
        assert "PTE_PIPELINE_STORE" in told and str(built.root / "build/.store") in output
        code, output = doit()
        assert code == 0 and "can't be written" not in output, output
        assert {*built.outcomes().values()} == {"up-to-date"}
        code, output = doit("cache", "stats")
        assert code == 0 and "could not take" in output, output
        environment["PTE_PIPELINE_STORE_SIZE"] = "1B"
        code, output = doit("cache", "gc")
        assert code == 1 and "cache: store" in output and "can't be written" in output, output
        assert "Traceback" not in output
    assert before == {path for path in built.store.rglob("*") if path.is_file()}


def test_nothing_is_evicted_of_folders_that_can_not_be_written(tmp_path, obeying):
    store = Store(tmp_path / "store")
    store.put(b"some bytes")

    def use():
        evicted = evict(store, 0)
        assert evicted.left == 10 and not evicted.blobs

    def fail():
        with pytest.raises(PipelineError, match=r"can't be written .Permission denied."):
            evict(store, 0)

    with mode([*store.root.glob("blobs/*")], 0o555):
        obeying(use)
    with mode([store.root / ".gc.lock"], 0o444), mode([store.root], 0o555):
        obeying(fail)
    with mode([store.root, *store.root.glob("blobs/*")], 0o555):
        obeying(use)  # with any content in its index, which gets no journal
