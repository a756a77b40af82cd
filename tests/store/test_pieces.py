"""Files of large blobs: joined they are the file, and the store holds each once."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pipeline.features.cache.index_file import open_index
from pipeline.store.digest import hash_bytes
from pipeline.store.pieces import blobs_of_files, find_size, joined, make_piece, write_joined
from pipeline.store.store import MissingBlobError, Store

LARGE, SMALL = 1 << 20, 1000


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def cut(store, *sizes):
    """Return a file's content, and its pieces of these sizes."""
    parts = [os.urandom(size) for size in sizes]
    return b"".join(parts), [make_piece(part, store) for part in parts]


def test_a_file_stands_in_the_store_as_its_pieces(store, tmp_path):
    content, pieces = cut(store, 8, LARGE, SMALL, 8, SMALL, LARGE, LARGE)
    with joined(pieces, store) as file:
        assert file.path.read_bytes() == content
        assert (file.digest, file.size) == (hash_bytes(content), len(content))
    assert not file.path.exists()
    assert [kind for kind, _ in file.pieces] == ["bytes", "blob", "blob", "blob", "blob"]
    parts = {place: content[place[0] : sum(place)] for place in file.digests}
    assert len(parts) == 4 and LARGE in {size for _, size in parts}
    assert file.digests == {place: hash_bytes(part) for place, part in parts.items()}
    assert find_size(file.pieces, store) == len(content)
    target = tmp_path / "build" / "one.pte"
    write_joined(file.pieces, file.digest, store, target, tmp_path)
    assert target.read_bytes() == content
    assert not store.has(file.digest)

    result = {"files": {"one.pte": file.digest}, "joined": {"one.pte": file.pieces}}
    assert len(blobs_of_files(result)) == 4
    store.put_result({"kind": "test"}, result)
    with open_index(store) as index:
        loose = []
        while row := index.oldest_loose(float("inf")):
            loose.append(row[1])
            index.forget("blobs", row[0], is_removed=True)
    assert sorted(loose) == [SMALL, SMALL]  # they are part of another one by now


def test_a_file_that_is_held_gets_its_place(store, tmp_path):
    content, pieces = cut(store, LARGE, 8, LARGE)
    target = tmp_path / "build" / "a" / "one.pte"
    with joined(pieces, store) as file:
        assert file.place(target, tmp_path)
        assert not file.path.exists()  # it was moved
    assert target.read_bytes() == content and target.stat().st_mode & 0o777 == 0o644
    with joined(cut(store, SMALL)[1], store) as blob:
        assert not blob.place(target, tmp_path)  # it belongs to the store


def test_a_file_that_is_held_is_copied_to_another_filesystem(store, tmp_path):
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other filesystem here")
    content, pieces = cut(store, LARGE, 8, LARGE)
    with TemporaryDirectory(dir=memory) as folder, joined(pieces, store) as file:
        target = Path(folder) / "one.pte"
        assert file.place(target, Path(folder))
        assert target.read_bytes() == content and file.path.exists()
    assert not file.path.exists()


def test_a_file_of_small_blobs_is_a_blob(store):
    content, pieces = cut(store, SMALL, 8, SMALL)
    with joined(pieces, store) as file:
        assert file.path == store.blob_path(file.digest)
    assert not file.pieces
    assert store.read(file.digest) == content


@pytest.mark.parametrize("fault", ["lost", "damaged", "another"])
def test_a_file_that_is_not_whole_is_a_miss(store, tmp_path, fault):
    content, pieces = cut(store, LARGE, SMALL)
    path = store.blob_path(pieces[0][1])
    if fault == "lost":
        path.unlink()
    elif fault == "damaged":
        path.chmod(0o644)
        path.write_bytes(bytes(LARGE))
    else:
        pieces.reverse()
    target = tmp_path / "build" / "one.pte"
    with pytest.raises(MissingBlobError):
        write_joined(pieces, hash_bytes(content), store, target, tmp_path)
    assert not list(target.parent.iterdir())
    assert store.has(pieces[0][1]) == (fault == "another")
