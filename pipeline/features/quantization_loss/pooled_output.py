"""The errors of an output over several calls, pooled: one SQNR, one cosine, one agreement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pipeline.validate.metrics import OutputError, iter_chunks, json_number

# The limits that mean something for a class index or a mask, where distances don't.
OF_LABELS = ("atol", "rtol", "max_mean_abs", "max_p999_abs", "min_agreement")


class PooledOutput:
    """Sums over all values of an output in several calls, where both sides are finite.

    `signal` is the sum of e^2, `noise` of (a - e)^2, `power` of a^2 and `product` of a e;
    `least_sqnr` is the SQNR of the worst call, in dB. `is_label` says that the values are choices
    (`labels.find_labels`).
    """

    def __init__(self, is_label: bool = False) -> None:
        self.is_label = is_label
        self.calls: int = 0
        self.values: int = 0
        self.signal: float = 0.0
        self.noise: float = 0.0
        self.power: float = 0.0
        self.product: float = 0.0
        self.max_abs: float = 0.0
        self.agreeing: int = 0
        self.rows: int = 0
        self.least_sqnr: float = math.inf
        self.is_integer: bool = False
        self._first: Tensor | None = None  # expected in the first call, if integers
        self._still: int = 0  # later integers that equal those of the first call
        self._later: int = 0  # later integers in all

    def add(self, actual: Any, expected: Any, error: OutputError) -> None:
        """Add the values of a call, and their error.

        A mismatch of shapes or dtypes counts as infinite noise.
        """
        self.calls += 1
        self.max_abs = max(self.max_abs, error.max_abs)
        self.agreeing += error.agreeing
        self.rows += error.rows
        self._add_integers(actual, expected)
        if error.sqnr_db is not None and not self.is_label:
            self.least_sqnr = min(self.least_sqnr, error.sqnr_db)
        # Choices and text have no noise; `_add_integers` has counted choices.
        if not isinstance(expected, Tensor) or expected.is_complex() or self.is_label:
            return
        if error.mismatch is not None or error.disagreeing:
            self.noise = math.inf
            return
        for a, e, distance in iter_chunks(actual, expected):
            if not distance.sum().isfinite():
                finite = a.isfinite() & e.isfinite()
                a, e, distance = a[finite], e[finite], distance[finite]
            self._add_floats(a, e, distance)

    def _add_floats(self, actual: Tensor, expected: Tensor, distance: Tensor) -> None:
        """Add finite values in float64, and their distances."""
        self.values += actual.numel()
        self.signal += float(expected.dot(expected))
        self.noise += float(distance.dot(distance))
        self.power += float(actual.dot(actual))
        self.product += float(actual.dot(expected))

    def _add_integers(self, actual: Any, expected: Any) -> None:
        """Count equal integers and bools as agreement."""
        if not isinstance(expected, Tensor) or expected.dtype.is_floating_point:
            return
        self.is_integer = True
        self._follow(expected)
        if isinstance(actual, Tensor) and actual.shape == expected.shape:
            self.agreeing += int((actual == expected).sum())
            self.rows += expected.numel()

    def _follow(self, expected: Tensor) -> None:
        """Count how many integers stay as they were in the first call."""
        if self._first is None:
            self._first = expected.detach().clone()
        elif expected.shape == self._first.shape:
            self._still += int((expected == self._first).sum())
            self._later += expected.numel()

    def could_disagree(self, least: float) -> bool:
        """Return whether the first call's integers, in place of all later ones, agree too little.

        True if there is no later call of the same shape, which shows nothing.
        """
        return not self._later or self._still / self._later < least

    @property
    def is_exact(self) -> bool:
        return self.max_abs == 0 and not math.isinf(self.noise)

    def is_covered(self, limits: Sequence[str]) -> bool:
        """Return whether one of these limits applies to this output."""
        if self.rows and "min_agreement" in limits:
            return True
        if self.is_label:
            return any(name in OF_LABELS for name in limits if name != "min_agreement")
        return bool(self.signal) and any(name != "min_agreement" for name in limits)

    @property
    def sqnr_db(self) -> float | None:
        """Return 10 log10(signal / noise), or None without a signal."""
        if not self.signal:
            if math.isinf(self.noise):
                return -math.inf
            return None
        if not self.noise:
            return math.inf
        if self.noise < math.inf:
            return 10 * math.log10(self.signal / self.noise)
        return -math.inf

    @property
    def cosine(self) -> float | None:
        """Return the cosine between both sides, or None without a signal."""
        if not self.signal:
            return None
        if self.power:
            return self.product / math.sqrt(self.signal * self.power)
        return 0.0

    @property
    def agreement(self) -> float | None:
        """Return the share of rows whose greatest values share a place; None without rows."""
        if self.rows:
            return self.agreeing / self.rows
        return None

    def to_json(self, output: str) -> dict[str, Any]:
        return {
            "output": output,
            "calls": self.calls,
            "values": self.values,
            "max_abs": json_number(self.max_abs),
            "sqnr_db": json_number(self.sqnr_db),
            "cosine": json_number(self.cosine),
            "agreement": json_number(self.agreement),
            "agreeing": self.agreeing,
            "rows": self.rows,
        }


def pooled_json(
    names: Sequence[str], pools: dict[int, PooledOutput]
) -> list[dict[str, Any]]:
    return [pool.to_json(names[place]) for place, pool in sorted(pools.items())]
