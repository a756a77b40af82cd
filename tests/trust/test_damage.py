"""Files of the store, of `build/` and of doit replaced by folders, links, pipes, empty or damaged
files: each is restored, and its content is made again."""

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from pipeline.features.cache.contents import verify
from pipeline.features.cache.eviction import evict
from pipeline.store.files import remove, write_atomically
from pipeline.store.leases import lease
from pipeline.store.store import Store
from pipeline.store.usage import Usage, add_usage, read_usage
from tests.support.matrix import in_tiers

WRONG = ("folder", "link", "dangling", "pipe", "empty", "garbage")


def put_in_place(path: Path, what: str, outside: Path) -> None:
    """Put something else in the place of a file or folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    match what:
        case "folder":
            (path / "inner").mkdir(parents=True)
            (path / "inner" / "file").write_text("x")
        case "link":
            path.symlink_to(outside)
        case "dangling":
            path.symlink_to(outside.with_name("not-there"))
        case "pipe":
            os.mkfifo(path)
        case "empty":
            path.write_bytes(b"")
        case "garbage":
            path.write_bytes(b'{"a": [\x00\xff' * 9)


@pytest.fixture
def outside(tmp_path):
    """Someone else's file, which links point to."""
    path = tmp_path / "outside"
    path.write_bytes(b"somebody's")
    yield path
    assert path.read_bytes() == b"somebody's"
    assert not (tmp_path / "not-there").exists()


@pytest.mark.parametrize("what", WRONG)
def test_anything_in_the_place_of_a_stored_file_is_a_miss_and_is_replaced(tmp_path, outside, what):
    store = Store(tmp_path / "store")
    blob, key = store.put(b"content"), {"kind": "test"}
    action = store.put_result(key, {"blobs": [blob]})
    for path in (store.blob_path(blob), store.action_path(action)):
        put_in_place(path, what, outside)
    again = Store(store.root)
    assert not again.intact([blob]) and again.get(action) is None
    assert list(again.stream(again.put(b"content"))) == [b"content"]
    again.put_result(key, {"blobs": [blob]})
    assert again.get(action).result == {"blobs": [blob]} and again.read(blob) == b"content"
    put_in_place(store.blob_path(blob), what, outside)
    put_in_place(store.action_path(action), what, outside)
    assert len(verify(again)) == 2 and not verify(again)


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("name", ["README", "usage.json", ".gc.lock", "locks/x", "tmp", "runs"])
def test_the_other_files_and_folders_of_a_store_are_replaced(tmp_path, outside, name, what):
    store = Store(tmp_path / "store")
    store.put(b"1")
    put_in_place(store.root / name, what, outside)
    with store.lock("x"), lease(store):
        store.put(b"2")
    add_usage(store, {"link": Usage(hits=1)})
    assert read_usage(store)["link"].hits == 1
    assert not evict(store, 1 << 30).busy
    assert not os.path.islink(store.root / name)


@pytest.mark.parametrize("what", WRONG)
def test_folders_of_a_store_are_replaced(tmp_path, outside, what):
    store = Store(tmp_path / "store")
    blob = store.put(b"content")
    for folder in (store.blob_path(blob).parent, store.root / "actions", store.root / "blobs"):
        put_in_place(folder, what, outside)
        assert Store(store.root).put(b"content") == blob
        store.put_result({"kind": "test"}, {"blobs": [blob]})
        assert Store(store.root).read(blob) == b"content"


def test_a_link_below_the_root_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "pair").symlink_to(tmp_path / "elsewhere")
    write_atomically(tmp_path / "build" / "pair" / "a.txt", b"a", tmp_path / "build")
    assert not any((tmp_path / "elsewhere").iterdir())
    assert (tmp_path / "build" / "pair" / "a.txt").read_bytes() == b"a"


# Whole builds

LEFT = (
    ("pair/pair.pte", ".state/pair.json", "run.json", ".logs"),
    ("pair/manifest.json", ".files.json", "timeline.json"),
    ("pair/report.json", ".state", "index.html", ".logs/pair"),
    ("pair",),
)
LOGS = (".logs/pair/validate-pair.log", ".logs/pair/compile-decode.log", ".logs/pair/validate.step")


@pytest.mark.parametrize("what", in_tiers(WRONG, ["link", "garbage"]))
def test_anything_in_the_place_of_what_a_build_left_is_replaced(built, outside, what):
    before = built.bytes_of("pair", "pair.pte")
    for names in LEFT:
        for name in names:
            if name == ".logs/pair":  # a run with nothing to do writes no log
                remove(built.root / "build" / ".logs")
            put_in_place(built.root / "build" / name, what, outside)
        assert built.doit(timeout=60) == 0, (names, built.output)
        assert "Traceback" not in built.output
        assert built.bytes_of("pair", "pair.pte") == before, names
        again = built.doit(timeout=60), built.output
        assert again == (0, "up to date: 1 package\n"), names
    remove(built.root / "build" / ".logs")
    for name in LOGS:
        put_in_place(built.root / "build" / name, what, outside)
    shutil.rmtree(built.store)
    shutil.rmtree(built.root / "build" / "pair")
    assert built.doit(timeout=120) == 0, built.output
    assert built.bytes_of("pair", "pair.pte") == before


def damage_states(path: Path, what: str, outside: Path) -> None:
    if what in WRONG:
        put_in_place(path, what, outside)
    elif what == "truncated":
        path.write_bytes(path.read_bytes()[:5000])
    elif what == "journal":
        put_in_place(path, "garbage", outside)
        put_in_place(path.with_name(f"{path.name}-journal"), "folder", outside)
    else:
        path.unlink()
        table = {
            "schema": "create table doit (a int)",
            "json": "create table doit (task_id text primary key, task_data json)",
            "list": "create table doit (task_id text primary key, task_data json)",
        }
        with sqlite3.connect(path) as connection:
            connection.execute(table[what])
            if what != "schema":
                row = ("x", "{" if what == "json" else "[1]")
                connection.execute("insert into doit values (?, ?)", row)
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("what", [*WRONG, "truncated", "journal", "schema", "json", "list"])
def test_a_damaged_file_of_doit_is_made_anew(built, outside, what):
    path = built.root / ".doit.sqlite3"
    damage_states(path, what, outside)
    assert built.doit("list") == 0, built.output
    quiet = what in ("empty", "link", "dangling", "pipe", "folder")
    lines = [line for line in built.output.splitlines() if "doit.sqlite3" in line]
    assert lines == ([] if quiet else [".doit.sqlite3: was damaged; it is created again"])
    assert built.doit("list") == 0 and "sqlite3" not in built.output


@pytest.mark.slow
def test_a_file_of_doit_that_another_one_uses_stays(built):
    path = built.root / ".doit.sqlite3"
    with sqlite3.connect(path) as connection:
        connection.execute("create table if not exists other (a int)")
        connection.commit()
        connection.execute("begin exclusive")
        assert built.doit("list") == 3
        assert built.output == (
            "ERROR: .doit.sqlite3: is in use by another doit process; run again\n"
        )
    connection.close()
    assert built.doit("list") == 0
