"""Sizes in human-readable form, written and read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.store.sizes import human_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("40MB", 40_000_000), ("512KiB", 2**19), ("1.5 kB", 1500), ("3B", 3), ("2TB", 2 * 10**12)],
)
def test_parsed(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "40", "MB", "-1MB", "4 0MB", "1e3MB", "40mb", "40MB "])
def test_not_a_size(text):
    assert parse_size(text) is None


@given(st.integers(min_value=0, max_value=10**15))
def test_shown_size_is_near(size):
    shown = parse_size(human_size(size))
    assert shown is not None
    assert abs(shown - size) <= max(size * 0.06, 0.5)
