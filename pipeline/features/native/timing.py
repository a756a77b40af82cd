"""How often a method is called to be timed, and what its times come to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

DIGITS = 3  # of a time; more would be noise
_CONFIDENCE = 0.95
_P95 = 0.95
_SECONDS = 0.2  # of calls, unless the config says how many
MOST_CALLS, _LEAST_CALLS = 20, 2


class DeviceTiming:
    """How a method is called to be timed.

    Attributes:
        calls: how many times count; None for up to 20 within 0.2 seconds.
        warm_up: how many calls are made before them.
        pause: milliseconds before each call that counts, in which a hot device cools.
    """

    def __init__(
        self, calls: int | None = None, warm_up: int = 2, pause: float = 0.0
    ) -> None:
        self.calls = calls
        self.warm_up = warm_up
        self.pause = pause

    def count_calls(self, milliseconds: float) -> int:
        """Return how many calls to make of a method that takes so long."""
        if self.calls is not None:
            return self.calls
        fitting = int(_SECONDS * 1e3 / max(milliseconds, 1e-3))
        return min(MOST_CALLS, max(_LEAST_CALLS, fitting))


def find_median(times: Sequence[float]) -> float | None:
    """Return the median to three digits; None where nothing was timed."""
    return round_time(median(times)) if times else None


def find_p95(times: Sequence[float]) -> float | None:
    """Return the least time that 95 % of all times keep, to three digits; None without times."""
    if not times:
        return None
    place = math.ceil(_P95 * len(times)) - 1
    return round_time(sorted(times)[place])


def round_time(time: float) -> float:
    return float(f"{time:.{DIGITS}g}")


def bound_median(figures: Sequence[float]) -> tuple[float, float]:
    """Return a confidence interval of 95 % of the median of what the figures were drawn from; all
    their range where they are fewer than six.

    Between two order statistics, by the binomial distribution: it asks nothing of how times spread.
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
