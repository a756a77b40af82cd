import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from pipeline.store import digest
from pipeline.store.digest import FileDigests

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.binary(max_size=1000))
def test_digest_is_blake3_of_the_content(data):
    assert digest.of_bytes(data) == blake3(data).hexdigest()


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_file_digest_equals_that_of_its_bytes(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    assert digest.of_file(path) == digest.of_bytes(path.read_bytes())


@given(JSON)
def test_json_digest_survives_a_round_trip_and_key_order(value):
    again = json.loads(json.dumps(value))
    assert digest.of_json(again) == digest.of_json(value)
    if isinstance(value, dict):
        assert digest.of_json(dict(reversed(list(value.items())))) == digest.of_json(value)


@given(st.dictionaries(st.text(), JSON, min_size=1, max_size=4), st.data())
def test_json_digest_changes_with_any_value(value, data):
    name = data.draw(st.sampled_from(sorted(value)))
    other = data.draw(
        JSON.filter(lambda v: digest.canonical_json(v) != digest.canonical_json(value[name]))
    )
    assert digest.of_json({**value, name: other}) != digest.of_json(value)


def test_nan_has_no_digest():
    with pytest.raises(ValueError):
        digest.of_json({"x": float("nan")})


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_json_digest_does_not_depend_on_the_hash_seed(seed):
    code = "from pipeline import digest; print(digest.of_json({'b': [1, 'x'], 'a': None}))"
    env = {**os.environ, "PYTHONHASHSEED": seed}
    out = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == digest.of_json({"a": None, "b": [1, "x"]})


class CountingFile:
    """A computation that says how often it ran."""

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
    """Lets files look old enough for their digests to be remembered."""
    monkeypatch.setattr(digest, "RACY_NS", -1)


def test_unchanged_file_is_read_once_across_processes(tmp_path, old_file, monkeypatch):
    _settle(monkeypatch)
    compute = CountingFile()
    first = FileDigests(tmp_path / "cache.json")
    assert first.derived(old_file, "text", compute) == "one"
    first.save()
    assert FileDigests(tmp_path / "cache.json").derived(old_file, "text", compute) == "one"
    assert compute.calls == 1


def test_change_with_size_and_mtime_restored_is_seen(tmp_path, old_file, monkeypatch):
    _settle(monkeypatch)
    digests = FileDigests(tmp_path / "cache.json")
    before, stat = digests.of(old_file), old_file.stat()
    old_file.write_text("two")
    os.utime(old_file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert digests.of(old_file) != before


def test_file_that_changed_just_now_is_not_remembered(tmp_path, old_file):
    digests, compute = FileDigests(tmp_path / "cache.json"), CountingFile()
    digests.derived(old_file, "text", compute)
    digests.derived(old_file, "text", compute)
    assert compute.calls == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"x": 1}', b"\xff"])
def test_damaged_cache_is_as_good_as_none(tmp_path, old_file, content):
    cache = tmp_path / "cache.json"
    cache.write_bytes(content)
    assert FileDigests(cache).of(old_file) == digest.of_file(old_file)


@pytest.mark.parametrize("jump", [-(10**18), -(10**9), 10**9, 10**18], ids=lambda ns: f"{ns:+.0e}")
def test_clock_that_jumps_never_makes_a_stale_digest(tmp_path, monkeypatch, jump):
    """The clock decides whether a digest is remembered; stamps decide whether it still holds."""
    path, cache = tmp_path / "file", tmp_path / "cache"
    path.write_bytes(b"one")
    digests = FileDigests(cache)
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + jump)
    assert digests.of(path) == digest.of_bytes(b"one")
    path.write_bytes(b"two")
    assert digests.of(path) == digest.of_bytes(b"two")
    digests.save()
    monkeypatch.setattr(time, "time_ns", now)
    path.write_bytes(b"six")
    assert FileDigests(cache).of(path) == digest.of_bytes(b"six")


def test_derived_value_holds_for_what_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.store.digest.RACY_NS", -1)
    path = tmp_path / "file"
    path.write_bytes(b"x")
    digests = FileDigests(tmp_path / "cache")
    made = []

    def compute(each):
        return lambda _: made.append(each) or [each]

    for each in ("a", "a", "b", "b", "a"):
        assert digests.derived(path, "what", compute(each), given=each) == [each]
    assert made == ["a", "b", "a"]
    assert digests.derived(path, "none", lambda _: made.append("none")) is None
    assert digests.derived(path, "none", lambda _: made.append("none")) is None
    assert made[3:] == ["none", "none"]
