import multiprocessing
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.store import digest
from pipeline.store.entries import ActionEntry
from pipeline.store.places import default_root
from pipeline.store.store import MissingBlobError, Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@settings(max_examples=30)
@given(data=st.binary(max_size=5000))
def test_what_is_put_is_read_back(tmp_path_factory, data):
    store = Store(tmp_path_factory.mktemp("store"))
    blob = store.put(data)
    assert blob == digest.hash_bytes(data)
    assert store.has(blob)
    assert store.read(blob) == data == b"".join(store.stream(blob))


def test_writer_streams_a_blob(store):
    with store.writer() as file:
        file.write(b"ab")
        file.write(memoryview(b"cd"))
    assert (file.digest, file.size) == (digest.hash_bytes(b"abcd"), 4)
    assert store.read(file.digest) == b"abcd"


@pytest.mark.parametrize("size", [digest.PIECE + more for more in (-1, 0, 1, 2 * digest.PIECE)])
def test_large_blobs_are_written_and_hashed_in_pieces(store, size):
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    with store.writer() as file:
        file.write(data)
    assert file.digest == store.put(data) == digest.hash_file(store.blob_path(file.digest))
    assert store.blob_path(file.digest).read_bytes() == data
    other = Store(store.root.parent / "other")
    assert other.read(other.put(memoryview(data))) == data


def test_pieces_are_read_only_where_they_are_new(store):
    read = []

    def pieces():
        read.append("once")
        yield from (memoryview(b"ab"), memoryview(b"cd"))

    blob = digest.hash_bytes(b"abcd")
    assert store.put_pieces(blob, pieces) == store.put_pieces(blob, pieces) == blob
    assert read == ["once"]
    assert store.read(blob) == b"abcd"


def test_pieces_that_fail_leave_nothing(store):
    blob = digest.hash_bytes(b"one")
    with pytest.raises(digest.WrongContentError):
        store.put_pieces(blob, lambda: digest.verified([b"two"], blob))
    assert not any(path.is_file() for path in (store.root / "blobs").rglob("*"))
    assert not any((store.root / "tmp").iterdir())


def test_writer_that_fails_leaves_nothing(store):
    with pytest.raises(RuntimeError), store.writer() as file:
        file.write(b"half")
        raise RuntimeError
    assert [p for p in (store.root / "blobs").rglob("*") if p.is_file()] == []


def test_blobs_are_read_only(store):
    mode = store.blob_path(store.put(b"x")).stat().st_mode
    assert stat.S_IMODE(mode) == 0o444


DAMAGE = {
    "truncated": lambda data: data[:-1],
    "empty": lambda data: b"",
    "bit flipped": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "swapped": lambda data: b"another blob of this length!"[: len(data)].ljust(len(data)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("read", ["read", "stream", "verified_path"])
def test_damaged_blob_is_dropped_never_served(store, damage, read):
    content = b"some content of a blob"
    blob = store.put(content)
    path = store.blob_path(blob)
    path.chmod(0o644)
    path.write_bytes(damage(content))
    with pytest.raises(MissingBlobError):
        result = getattr(store, read)(blob)
        list(result) if read == "stream" else None
    assert not store.has(blob)
    assert store.read(store.put(content)) == content


@pytest.mark.parametrize("read", ["read", "verified_path"])
def test_blob_that_vanished_is_missing(store, read):
    blob = store.put(b"x")
    store.blob_path(blob).unlink()
    with pytest.raises(MissingBlobError):
        getattr(store, read)(blob)


def test_put_replaces_a_blob_of_the_wrong_size(store):
    blob = store.put(b"whole")
    store.blob_path(blob).chmod(0o644)
    store.blob_path(blob).write_bytes(b"ha")
    store = Store(store.root)  # like another process: this one has just written it
    store.put(b"whole")
    assert store.read(blob) == b"whole"


KEY = {"kind": "test", "method": "encode"}


def test_result_is_found_by_its_key(store):
    action = store.put_result(KEY, {"object": [1, 2]})
    assert action == digest.hash_json(KEY)
    assert store.get(action).result == {"object": [1, 2]}
    assert store.get(action).key == KEY


def test_seconds_of_stages_and_peaks_are_kept(store):
    action = store.put_result(KEY, {"object": 1}, 2.5, {"lower": 1.23456, "to edge": 1}, 1 << 33)
    assert store.get(action).stages == {"lower": 1.235, "to edge": 1}
    assert store.get(action).peak == 1 << 33


@pytest.mark.parametrize("peak", ["1", -1, 1.5, True, 1 << 60])
def test_an_entry_with_another_peak_is_none(peak):
    entry = ActionEntry(KEY, {"object": 1}, 2.5, peak=peak)
    assert ActionEntry.from_json(entry.to_json(), digest.hash_json(KEY)) is None


@pytest.mark.parametrize(
    "stages",
    [5, ["lower"], {"lower": "x"}, {"lower": -1}, {"lower": True}, {"\x1b[2J": 1}, {"": 1}],
)
def test_an_entry_with_other_stages_is_none(stages):
    entry = ActionEntry(KEY, {"object": 1}, 2.5, stages=stages)
    assert ActionEntry.from_json(entry.to_json(), digest.hash_json(KEY)) is None


def test_unknown_result_is_none(store):
    assert store.get(digest.hash_json(KEY)) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"key": {}, "result": {}, "check": "x"}',
        b'{"key":{"kind":"compile","method":"encode"},"result":{"object":[1,3]},"check":"x"}',
    ],
)
@pytest.mark.parametrize("read_before", [False, True])
def test_damaged_result_is_dropped_never_served(store, content, read_before):
    action = store.put_result(KEY, {"object": [1, 2]})
    assert not read_before or store.get(action) is not None
    path = next((store.root / "actions").rglob("*.json"))
    path.chmod(0o644)
    path.write_bytes(content)
    assert store.get(action) is None
    assert not path.exists()


def test_result_under_another_name_is_not_served(store):
    store.put_result(KEY, {"object": 1})
    other = store.put_result({"kind": "other"}, {"object": 2})
    paths = sorted((store.root / "actions").rglob("*.json"))
    one, two = (path.read_bytes() for path in paths)
    for path, content in zip(paths, (two, one), strict=True):
        path.chmod(0o644)
        path.write_bytes(content)
    assert store.get(other) is None
    assert store.get(digest.hash_json(KEY)) is None


def _put_many(root):
    store = Store(root)
    for number in range(50):
        store.put(b"shared %d" % number)
        store.put_result({"n": number}, {"r": number})


def test_processes_that_write_the_same_agree(tmp_path):
    processes = [multiprocessing.Process(target=_put_many, args=(tmp_path,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    store = Store(tmp_path)
    for number in range(50):
        assert store.read(digest.hash_bytes(b"shared %d" % number)) == b"shared %d" % number
        assert store.get(digest.hash_json({"n": number})).result == {"r": number}
    assert not list(tmp_path.rglob(".tmp-*"))


def test_default_root_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "pte-pipeline"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_root().parts[-2:] == (".cache", "pte-pipeline")


def test_store_explains_itself(store):
    store.put(b"x")
    assert "can be deleted" in (store.root / "README").read_text()
