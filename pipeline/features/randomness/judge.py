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

# The number of random splits of all calls, and the factor by which the means of the package may
# differ more than those of the two parts do. How much parts differ depends on how many elements of
# an output hang on one draw, and on how rarely a draw matters.
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
    most_distance, most_ratio = _most_of_splits(expected, actual, rounding)
    errors = _mean_distance(expected, actual, rounding)
    if errors > most_distance:
        return (
            f"means over repeated calls are {errors:.1f} standard errors from the source's; in "
            f"random splits of all calls, they are at most {most_distance / _TIMES_SPLIT:.1f} apart"
        )
    ratio = _ratio_of_variances(expected, actual, rounding)
    if not 1 / most_ratio <= ratio <= most_ratio:
        return (
            f"the variance over repeated calls is {ratio:.2g} times the source's "
            f"(between {1 / most_ratio:.2g} and {most_ratio:.2g})"
        )
    return ""


def _ratio_of_variances(expected: Tensor, actual: Tensor, rounding: float) -> float:
    floor = rounding**2 * expected.shape[1]
    variance = float(actual.var(0).sum()) + floor
    return variance / (float(expected.var(0).sum()) + floor)


def _mean_distance(expected: Tensor, actual: Tensor, rounding: float) -> float:
    """Return the distance between the means of elements, in standard errors."""
    share = 1 / len(expected) + 1 / len(actual)
    variances = expected.var(0) * share + rounding**2
    differences = expected.mean(0) - actual.mean(0)
    distance = float(differences.square().sum())
    return (distance / float(variances.sum())) ** 0.5


def _most_of_splits(
    expected: Tensor, actual: Tensor, rounding: float
) -> tuple[float, float]:
    """Return how far the means, and the ratio of the variances, may be from the source's.

    The limits come from random splits of all calls, always the same. If a draw rarely matters, few
    calls show it, and by chance these may all be the source's or the package's.
    """
    generator = torch.Generator().manual_seed(0)
    calls = torch.cat((expected, actual))
    distance, ratio = 1.0, _MOST_RATIO
    for _ in range(_SPLITS):
        order = torch.randperm(len(calls), generator=generator)
        first = calls[order[: len(expected)]]
        second = calls[order[len(expected) :]]
        distance = max(distance, _mean_distance(first, second, rounding))
        split_ratio = _ratio_of_variances(first, second, rounding)
        ratio = max(ratio, split_ratio, 1 / split_ratio)
    return _TIMES_SPLIT * distance, ratio


def _stack(values: Sequence[Tensor]) -> Tensor:
    rows = []
    for value in values:
        real = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
        rows.append(real.reshape(-1).double())
    return torch.stack(rows)
