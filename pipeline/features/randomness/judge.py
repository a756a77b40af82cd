"""Judges a method that is declared as random: `validate: {random: true}`.

Source and package draw from separate generators, so single values can't be compared. These can be
compared over repeated calls on the same inputs: shapes and dtypes, the range of the values, the
mean of each element, and how widely the values vary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.validate.metrics import compare, greatest_magnitude

# The number of random splits of the source's own calls into halves, and the factor by which the
# package may differ more than two halves do. How much halves differ depends on how many elements of
# an output hang on one draw.
_SPLITS, _TIMES_SPLIT = 50, 1.75
# The variance of two samples of 64 and 128 draws of one number differs by more once in 10,000.
_MOST_RATIO = 2.5
_SLACK = 1.0  # in widths of the source's range, beyond its ends
_ROUNDING = 1e-3  # differences within this share of the greatest value don't count


def judge_random(
    names: Sequence[str],
    source: Sequence[Sequence[Any]],
    package: Sequence[Sequence[Any]],
) -> list[tuple[str, str]]:
    """Compare repeated calls of a package with those of its source.

    Args:
        names: the names of the outputs.
        source: the outputs of each call of the source.
        package: the outputs of each call of the package.

    Returns:
        A name and a fault for each output that is not distributed like the source's.
    """
    wrong = []
    for place, name in enumerate(names):
        expected = [outputs[place] for outputs in source]
        actual = [outputs[place] for outputs in package]
        if fault := _judge_output(expected, actual):
            wrong.append((name, fault))
    return wrong


def _judge_output(expected: Sequence[Any], actual: Sequence[Any]) -> str:
    """Return the fault of an output, or ""."""
    first = expected[0]
    for value in actual:
        if isinstance(value, str) and isinstance(first, str):
            continue  # a random output may be a different string: strings have no distance
        mismatch = compare(value, first).mismatch
        if mismatch:
            return mismatch
    if not isinstance(first, Tensor) or not first.numel():
        return ""
    shapes = {tuple(value.shape) for value in (*expected, *actual)}
    if len(shapes) > 1:
        return f"shapes {sorted(shapes)} in repeated calls"
    return _judge_values(_stack(expected), _stack(actual))


def _judge_values(expected: Tensor, actual: Tensor) -> str:
    """Compare values in float64, of shape (calls, elements)."""
    source_share = _share_of_finite(expected)
    share = _share_of_finite(actual)
    if abs(source_share - share) > 0.1:
        return (
            f"{share:.0%} of its values are finite, {source_share:.0%} of the source's"
        )
    # NaN and infinities would swamp the sums; their share is compared above.
    expected = torch.nan_to_num(expected, 0.0, 0.0, 0.0)
    actual = torch.nan_to_num(actual, 0.0, 0.0, 0.0)
    least = float(expected.min())
    greatest = float(expected.max())
    rounding = _ROUNDING * max(
        greatest_magnitude(expected), torch.finfo(torch.float32).tiny
    )
    slack = _SLACK * (greatest - least) + rounding
    low = float(actual.min())
    high = float(actual.max())
    if low < least - slack or high > greatest + slack:
        where = f"from {least:.3g} to {greatest:.3g}"
        return f"values from {low:.3g} to {high:.3g}; the source's are {where} over repeated calls"
    return _judge_moments(expected, actual, rounding)


def _share_of_finite(values: Tensor) -> float:
    return float(values.isfinite().double().mean())


def _judge_moments(expected: Tensor, actual: Tensor, rounding: float) -> str:
    """Compare the means of elements, and how widely all of them vary."""
    errors = _mean_distance(expected, actual, rounding)
    allowed = _most_of_splits(expected, rounding)
    if errors > allowed:
        return (
            f"means over repeated calls are {errors:.1f} standard errors from the source's; two "
            f"halves of its own calls are at most {allowed / _TIMES_SPLIT:.1f} apart"
        )
    floor = rounding**2 * expected.shape[1]
    variance = float(actual.var(0).sum()) + floor
    source_variance = float(expected.var(0).sum()) + floor
    ratio = variance / source_variance
    if not 1 / _MOST_RATIO <= ratio <= _MOST_RATIO:
        return (
            f"the variance over repeated calls is {ratio:.2g} times the source's "
            f"(between {1 / _MOST_RATIO:.2g} and {_MOST_RATIO:g})"
        )
    return ""


def _mean_distance(expected: Tensor, actual: Tensor, rounding: float) -> float:
    """Return the distance between the means of elements, in standard errors."""
    share = 1 / len(expected) + 1 / len(actual)
    variances = expected.var(0) * share + rounding**2
    differences = expected.mean(0) - actual.mean(0)
    distance = float(differences.square().sum())
    return (distance / float(variances.sum())) ** 0.5


def _most_of_splits(expected: Tensor, rounding: float) -> float:
    """Return how far the means of a package may be from the source's.

    The limit comes from random halves of the source's own calls, split the same way each time.
    """
    generator = torch.Generator().manual_seed(0)
    half = len(expected) // 2
    most = 1.0
    for _ in range(_SPLITS):
        order = torch.randperm(len(expected), generator=generator)
        first = expected[order[:half]]
        second = expected[order[half:]]
        distance = _mean_distance(first, second, rounding)
        most = max(most, distance)
    return _TIMES_SPLIT * most


def _stack(values: Sequence[Tensor]) -> Tensor:
    rows = []
    for value in values:
        real = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
        rows.append(real.reshape(-1).double())
    return torch.stack(rows)
