"""Test matrices: a few cases by default, a sample in the slow tests, the rest before a release."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def in_tiers(
    values: Iterable[Any], slow: Collection[Any], quick: Collection[Any] = ()
) -> list[Any]:
    """Return the values as test parameters; values in neither list run only before a release.

    Raises:
        ValueError: `slow` or `quick` names something that isn't among the values.
    """
    matrix = list(values)
    if missing := [value for value in (*slow, *quick) if value not in matrix]:
        raise ValueError(f"not among the values: {missing}")
    params = []
    for value in matrix:
        marks = [pytest.mark.slow, pytest.mark.release]
        if value in quick:
            marks = []
        elif value in slow:
            marks = [pytest.mark.slow]
        params.append(pytest.param(value, marks=marks))
    return params
