import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from pipeline import digest
from pipeline.digest import FileDigests

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
