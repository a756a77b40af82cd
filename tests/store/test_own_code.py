"""Digests of the pipeline's files: correct after every change, and not computed twice."""

import os
import time
from pathlib import Path

import pytest

from pipeline.store import own_code
from pipeline.store.distributions import cache_path
from pipeline.store.file_digests import RACY_NS
from pipeline.store.own_code import hash_own_files


@pytest.fixture
def base(tmp_path, monkeypatch):
    """Two small packages, settled, and a place for their digests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PTE_PIPELINE_STORE", raising=False)
    base = tmp_path / "site"
    for name, text in {
        "pipeline/store/a.py": "a = 1\n",
        "pipeline/store/table.json": "{}",
        "pipeline/features/one/b.py": "b = 1\n",
        "pte_pipeline/__init__.py": "",
    }.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(text)
    time.sleep(1.5 * RACY_NS / 1e9)
    hash_own_files(base)
    return base


def edit_within_a_tick(base):
    """Write other content with the same size and mtime."""
    path = base / "pipeline/store/a.py"
    about = path.stat()
    path.write_text("a = 2\n")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


CHANGES = {
    "edited": lambda base: (base / "pipeline/store/a.py").write_text("a = 22\n"),
    "edited, with its old time": edit_within_a_tick,
    "data edited": lambda base: (base / "pipeline/store/table.json").write_text("[]"),
    "public": lambda base: (base / "pte_pipeline/__init__.py").write_text("x = 1\n"),
    "added": lambda base: (base / "pipeline/store/c.py").write_text(""),
    "added to a folder without files": lambda base: (base / "pipeline/features/c.py").touch(),
    "added in a new folder": lambda base: (
        (base / "pipeline/new").mkdir(),
        (base / "pipeline/new/c.py").touch(),
    ),
    "removed": lambda base: (base / "pipeline/features/one/b.py").unlink(),
    "renamed": lambda base: (base / "pipeline/store/a.py").rename(base / "pipeline/store/z.py"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_change_is_seen(change, base):
    before = hash_own_files(base)
    change(base)
    assert hash_own_files(base) != before


def test_a_second_look_reads_no_file(base, monkeypatch):
    before = hash_own_files(base)
    assert list(before) == sorted(before) and len(before) == 4
    monkeypatch.setattr(own_code, "hash_file", None)
    assert hash_own_files(base) == before


def test_bytecode_does_not_count_while_it_is_written(base):
    before = hash_own_files(base)
    folder = base / "pipeline/store/__pycache__"
    folder.mkdir()
    for name in ("new.cpython-311.pyc", "new.cpython-311.pyc.140213"):
        (folder / name).write_bytes(b"half")
    assert hash_own_files(base) == before


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"stamp": 1}', b'{"stamp": [], "digests": {}, "folders": 5}']
)
def test_a_record_of_something_else_is_made_again(content, base):
    before = hash_own_files(base)
    Path(cache_path(base / "own")).write_bytes(content)
    assert hash_own_files(base) == before


def test_what_is_in_flux_is_not_kept(base):
    (base / "pipeline/store/a.py").write_text("a = 3\n")
    hash_own_files(base)
    cached = cache_path(base / "own").read_bytes()
    time.sleep(1.5 * RACY_NS / 1e9)
    hash_own_files(base)
    assert cache_path(base / "own").read_bytes() != cached
