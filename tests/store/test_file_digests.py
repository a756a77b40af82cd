import os
import time
from pathlib import Path

import pytest

from pipeline.store import file_digests
from pipeline.store.digest import hash_bytes, hash_file
from pipeline.store.file_digests import FileDigests


class CountingFile:
    """A computation that counts how often it ran."""

    def __init__(self):
        self.calls = 0

    def __call__(self, path: Path):
        self.calls += 1
        return path.read_text()


@pytest.fixture
def old_file(tmp_path):
    path = tmp_path / "input"
    path.write_text("one")
    return path


def _settle(monkeypatch):
    """Make files look old enough for their digests to be cached."""
    monkeypatch.setattr(file_digests, "RACY_NS", -1)


def test_unchanged_file_is_read_once_across_processes(tmp_path, old_file, monkeypatch):
    _settle(monkeypatch)
    compute = CountingFile()
    first = FileDigests(tmp_path / "cache.json")
    assert first.cached(old_file, "text", compute) == "one"
    first.save()
    assert FileDigests(tmp_path / "cache.json").cached(old_file, "text", compute) == "one"
    assert compute.calls == 1


def test_change_with_size_and_mtime_restored_is_seen(tmp_path, old_file, monkeypatch):
    _settle(monkeypatch)
    digests = FileDigests(tmp_path / "cache.json")
    before, stat = digests.hash(old_file), old_file.stat()
    old_file.write_text("two")
    os.utime(old_file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert digests.hash(old_file) != before


@pytest.mark.parametrize("seconds", [1, 2])
def test_content_decides_where_times_have_no_fractions(tmp_path, old_file, monkeypatch, seconds):
    """On FAT or ext3 a file may change twice in one timestamp; two images may share all times."""
    whole, stamp_of = seconds * 1_000_000_000, file_digests.stamp_of

    def rounded(status):
        size, modified, changed, inode = stamp_of(status)
        return [size, modified // whole * whole, changed // whole * whole, inode]

    _settle(monkeypatch)
    monkeypatch.setattr(file_digests, "stamp_of", rounded)
    digests = FileDigests(tmp_path / "cache.json")
    for content in ("one", "two", "six"):
        old_file.write_text(content)
        assert digests.hash(old_file) == hash_bytes(content.encode())
        assert digests.find_plain(str(old_file)) == hash_bytes(content.encode())


def test_file_that_changed_just_now_is_not_cached(tmp_path, old_file):
    digests, compute = FileDigests(tmp_path / "cache.json"), CountingFile()
    digests.cached(old_file, "text", compute)
    digests.cached(old_file, "text", compute)
    assert compute.calls == 2


def test_file_that_changed_just_before_a_long_reading_is_not_cached(tmp_path, monkeypatch):
    monkeypatch.setattr(file_digests, "RACY_NS", 10_000_000)
    path, digests, made = tmp_path / "file", FileDigests(tmp_path / "cache.json"), []
    path.write_bytes(b"x")
    digests.cached(path, "text", lambda _: [time.sleep(0.1)])
    digests.cached(path, "text", lambda _: made.append("again") or [1])
    assert made == ["again"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"x": 1}', b"\xff"])
def test_damaged_cache_is_as_good_as_none(tmp_path, old_file, content):
    cache = tmp_path / "cache.json"
    cache.write_bytes(content)
    assert FileDigests(cache).hash(old_file) == hash_file(old_file)


@pytest.mark.parametrize("jump", [-(10**18), -(10**9), 10**9, 10**18], ids=lambda ns: f"{ns:+.0e}")
def test_clock_that_jumps_never_makes_a_stale_digest(tmp_path, monkeypatch, jump):
    """The clock decides whether a digest is cached; timestamps decide whether it is still valid."""
    path, cache = tmp_path / "file", tmp_path / "cache"
    path.write_bytes(b"one")
    digests = FileDigests(cache)
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + jump)
    assert digests.hash(path) == hash_bytes(b"one")
    path.write_bytes(b"two")
    assert digests.hash(path) == hash_bytes(b"two")
    digests.save()
    monkeypatch.setattr(time, "time_ns", now)
    path.write_bytes(b"six")
    assert FileDigests(cache).hash(path) == hash_bytes(b"six")


def test_cached_value_holds_for_what_is_given(tmp_path, monkeypatch):
    _settle(monkeypatch)
    path = tmp_path / "file"
    path.write_bytes(b"x")
    digests = FileDigests(tmp_path / "cache")
    made = []

    def compute(each):
        return lambda _: made.append(each) or [each]

    for each in ("a", "a", "b", "b", "a"):
        assert digests.cached(path, "what", compute(each), origin=each) == [each]
    assert made == ["a", "b", "a"]
    assert digests.cached(path, "none", lambda _: made.append("none")) is None
    assert digests.cached(path, "none", lambda _: made.append("none")) is None
    assert made[3:] == ["none", "none"]


def test_files_are_flushed_only_when_the_cache_is_saved(tmp_path, old_file, monkeypatch):
    _settle(monkeypatch)
    flushed = []
    monkeypatch.setattr(file_digests.os, "fsync", flushed.append)
    digests = FileDigests(tmp_path / "cache.json")
    digests.hash(old_file)
    assert not flushed
    monkeypatch.setattr(file_digests, "write_atomically", lambda *args: None)  # which flushes
    digests.save()
    assert len(flushed) == 1
