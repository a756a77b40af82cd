"""Matrices of like tests: by default a few, a sample in the slow tests, the rest in a release."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def in_tiers(
    values: Iterable[Any], slow: Collection[Any], quick: Collection[Any] = ()
) -> list[Any]:
    """Return the values as parameters of a test. Those that neither name are for a release.

    Raises:
        ValueError: something is named that is not among the values.
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
