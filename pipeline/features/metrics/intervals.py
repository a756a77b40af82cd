"""Confidence intervals of a metric: of its value, and of its drop from the source to the package.

All intervals are at the 95 % level. A proportion gets Wilson's interval (1927), which holds for few
samples too. A difference of two proportions on the same samples gets the interval of Bonett and
Price (2012). Other means get Student's interval. A value that isn't the mean of its samples' scores
(F1, mAP, a word error rate) gets the percentiles of a bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, variance

Interval = tuple[float, float]
Resampled = Sequence[float | None]
# With fewer samples, the assumptions behind Student's interval and the bootstrap don't hold.
LEAST_SAMPLES = 30
_Z = NormalDist().inv_cdf(0.975)
_TAIL = 0.025


def find_interval(
    value: float, scores: Sequence[float] | None, resampled: Resampled
) -> Interval | None:
    """Return the interval of a metric's value, or None if too few samples or draws support one.

    Args:
        scores: the metric of each sample alone, if their mean is the value; else None.
        resampled: the value of each bootstrap draw, None for draws without a value; empty if there
            are too few samples.
    """
    if scores is None:
        return _take_percentiles(resampled)
    if _is_proportion(scores) or _is_constant_share(scores):
        return _wilson(value, len(scores))
    return _student(scores)


def find_drop_interval(
    source: Sequence[float] | None,
    package: Sequence[float] | None,
    source_resampled: Resampled,
    package_resampled: Resampled,
) -> Interval | None:
    """Return the interval of the source's value minus the package's, on the same samples.

    None if too few samples or draws support one. The arguments are those of `find_interval`, once
    for the source and once for the package.
    """
    if source is None or package is None:
        drawn: list[float | None] = []
        for before, after in zip(source_resampled, package_resampled, strict=True):
            if before is None or after is None:
                drawn.append(None)
            else:
                drawn.append(before - after)
        return _take_percentiles(drawn)
    drops = [before - after for before, after in zip(source, package, strict=True)]
    are_proportions = _is_proportion(source) and _is_proportion(package)
    are_equal_shares = not any(drops) and _is_share(source)
    if are_proportions or are_equal_shares:
        return _bonett_price(drops.count(1), drops.count(-1), len(drops))
    return _student(drops)


def _is_proportion(scores: Sequence[float]) -> bool:
    return all(score in (0, 1) for score in scores)


def _is_share(scores: Sequence[float]) -> bool:
    return all(0 <= score <= 1 for score in scores)


def _is_constant_share(scores: Sequence[float]) -> bool:
    """Return whether all scores are the same share, so that they don't show how shares spread.

    The interval of a proportion is then wide enough: no mean of shares varies more than a
    proportion does.
    """
    return _is_share(scores) and len({*scores}) == 1


def _wilson(share: float, number: int) -> Interval:
    spread = _Z * math.sqrt(share * (1 - share) / number + _Z**2 / (4 * number**2))
    middle = share + _Z**2 / (2 * number)
    scale = 1 + _Z**2 / number
    # Keep the value itself within, even if rounding would put it beyond an end.
    low = min(share, max(0.0, (middle - spread) / scale))
    return low, max(share, min(1.0, (middle + spread) / scale))


def _bonett_price(lost: int, won: int, number: int) -> Interval:
    # One is added to each count, so that a lack of differences in these samples doesn't prove that
    # there are none.
    share_lost = (lost + 1) / (number + 2)
    share_won = (won + 1) / (number + 2)
    drop = share_lost - share_won
    spread = _Z * math.sqrt((share_lost + share_won - drop**2) / (number + 2))
    return drop - spread, drop + spread


def _student(scores: Sequence[float]) -> Interval | None:
    number = len(scores)
    if number < LEAST_SAMPLES:
        return None
    mean = fmean(scores)
    # The quantile of Student's distribution, from the first term of its expansion: within 0.3 %.
    quantile = _Z * (1 + (_Z**2 + 1) / (4 * (number - 1)))
    spread = quantile * math.sqrt(variance(scores, mean) / number)
    return mean - spread, mean + spread


def _take_percentiles(resampled: Resampled) -> Interval | None:
    """Return the range of the middle 95 % of draws, or None if under half of them have a value."""
    ordered = sorted(value for value in resampled if value is not None)
    if not ordered or len(ordered) < len(resampled) / 2:
        return None
    outside = round(len(ordered) * _TAIL)
    return ordered[outside], ordered[-1 - outside]
