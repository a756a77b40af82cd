"""Confidence intervals of a metric: of its value, and of what a package loses against its source.

All are of 95 %. A proportion has Wilson's interval (1927), which holds for few samples too. A
difference of two proportions on the same samples has that of Bonett and Price (2012). Other means
have Student's interval, and what is no mean of its samples (F1, mAP, a word error rate) the
percentiles of a bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, variance

Interval = tuple[float, float]
Resampled = Sequence[float | None]
# Below, neither the distribution of a mean nor a bootstrap is what these intervals assume.
LEAST_SAMPLES = 30
_Z = NormalDist().inv_cdf(0.975)
_TAIL = 0.025


def find_interval(
    value: float, scores: Sequence[float] | None, resampled: Resampled
) -> Interval | None:
    """Return the interval of a metric's value; None where there are too few samples for one.

    Args:
        scores: the metric of each sample alone, where their mean is the value; else None.
        resampled: the values of resampled data, None for draws without a value; empty where there
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
    """Return the interval of the source's value less the package's, on the same samples; None where
    these are too few. The arguments are those of `find_interval`, of both."""
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
    """Tell whether all scores are one share, whose spread they don't show: no other mean of shares
    varies more than a proportion does."""
    return _is_share(scores) and len({*scores}) == 1


def _wilson(share: float, number: int) -> Interval:
    spread = _Z * math.sqrt(share * (1 - share) / number + _Z**2 / (4 * number**2))
    middle = share + _Z**2 / (2 * number)
    scale = 1 + _Z**2 / number
    # The value itself is within, also where rounding would put it beyond an end.
    low = min(share, max(0.0, (middle - spread) / scale))
    return low, max(share, min(1.0, (middle + spread) / scale))


def _bonett_price(lost: int, won: int, number: int) -> Interval:
    # One is added to each count so that samples without a difference don't prove that there is
    # none.
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
    # The quantile of Student's distribution, by the first term of its expansion: within 0.3 %.
    quantile = _Z * (1 + (_Z**2 + 1) / (4 * (number - 1)))
    spread = quantile * math.sqrt(variance(scores, mean) / number)
    return mean - spread, mean + spread


def _take_percentiles(resampled: Resampled) -> Interval | None:
    """Return the middle 95 % of resampled values; None where fewer than half of them exist."""
    ordered = sorted(value for value in resampled if value is not None)
    if not ordered or len(ordered) < len(resampled) / 2:
        return None
    outside = round(len(ordered) * _TAIL)
    return ordered[outside], ordered[-1 - outside]
