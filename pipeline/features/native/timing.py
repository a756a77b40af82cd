"""How many calls of a method to time, and the statistics of their times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

DIGITS = 3  # significant digits of a time; more would be noise
_CONFIDENCE = 0.95
_P95 = 0.95
_SECONDS = 0.2  # time limit of the calls, unless the config sets their number
# Five interrupted calls of 100 leave `p95_ms` as it is; of 20, two would already decide it.
_MOST_CALLS, _LEAST_CALLS = 100, 2


class DeviceTiming:
    """The settings for timing a method's calls.

    Attributes:
        calls: the number of timed calls; None for up to 100 within 0.2 seconds.
        warm_up: the number of untimed calls before them.
        pause: milliseconds of rest before each timed call, so that a hot device can cool.
    """

    def __init__(
        self, calls: int | None = None, warm_up: int = 2, pause: float = 0.0
    ) -> None:
        self.calls = calls
        self.warm_up = warm_up
        self.pause = pause

    def count_calls(self, milliseconds: float) -> int:
        """Return how many calls of a method to time, given the milliseconds that one takes."""
        if self.calls is not None:
            return self.calls
        fitting = int(_SECONDS * 1e3 / max(milliseconds, 1e-3))
        return min(_MOST_CALLS, max(_LEAST_CALLS, fitting))


def find_median(times: Sequence[float]) -> float | None:
    """Return the median to three digits, or None if nothing was timed."""
    return round_time(median(times)) if times else None


def find_p95(times: Sequence[float]) -> float | None:
    """Return the time that 95 % of calls don't exceed, to three digits, or None without times."""
    if not times:
        return None
    place = math.ceil(_P95 * len(times)) - 1
    return round_time(sorted(times)[place])


def round_time(time: float) -> float:
    return float(f"{time:.{DIGITS}g}")


def bound_median(figures: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % confidence interval for the median of the figures' distribution.

    Returns the range of the figures if there are fewer than six.

    The bounds are two order statistics, chosen by the binomial distribution, so nothing is assumed
    about the distribution of times.
    """
    ordered = sorted(figures)
    count = len(ordered)
    tail = 0.0
    below = 0
    for place in range(count // 2):
        tail += math.comb(count, place) / 2**count
        if tail > (1 - _CONFIDENCE) / 2:
            break
        below = place
    return ordered[below], ordered[count - 1 - below]
