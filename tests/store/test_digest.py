import json
import os
import subprocess
import sys

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from pipeline.store import digest

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
    assert digest.hash_bytes(data) == blake3(data).hexdigest()


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_file_digest_equals_that_of_its_bytes(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    assert digest.hash_file(path) == digest.hash_bytes(path.read_bytes())


@given(JSON)
def test_json_digest_survives_a_round_trip_and_key_order(value):
    again = json.loads(json.dumps(value))
    assert digest.hash_json(again) == digest.hash_json(value)
    if isinstance(value, dict):
        assert digest.hash_json(dict(reversed(list(value.items())))) == digest.hash_json(value)


@given(st.dictionaries(st.text(), JSON, min_size=1, max_size=4), st.data())
def test_json_digest_changes_with_any_value(value, data):
    name = data.draw(st.sampled_from(sorted(value)))
    other = data.draw(
        JSON.filter(lambda v: digest.canonical_json(v) != digest.canonical_json(value[name]))
    )
    assert digest.hash_json({**value, name: other}) != digest.hash_json(value)


def test_nan_has_no_digest():
    with pytest.raises(ValueError):
        digest.hash_json({"x": float("nan")})


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_json_digest_does_not_depend_on_the_hash_seed(seed):
    code = "from pipeline.store import digest; print(digest.hash_json({'b': [1, 'x'], 'a': None}))"
    env = {**os.environ, "PYTHONHASHSEED": seed}
    out = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == digest.hash_json({"a": None, "b": [1, "x"]})


def test_a_file_of_holes_is_not_read(tmp_path):
    path = tmp_path / "big.pt2"
    with open(path, "wb") as file:
        file.truncate(2 << 40)
    with pytest.raises(OSError, match="has 2199023255552 bytes, but only 0 are allocated"):
        digest.hash_file(path)
    with open(path, "r+b") as file:
        file.write(b"x" * 5000)
    with pytest.raises(OSError, match="are allocated"):
        digest.hash_file(path)
