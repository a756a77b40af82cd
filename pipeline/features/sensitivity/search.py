"""Finds the modules to keep in float, in few probes.

A probe quantizes some modules and leaves the others in float; it gives the noise-to-signal share of
each output in each call. Estimates rank the modules, so the smallest set to keep consists roughly
of the first ones, and bisection finds how many. Modules that turn out not to be needed, because the
estimates were wrong, are quantized again. Doesn't use torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

Group = frozenset[str]
Noise = tuple[float, ...]
Probe = Callable[[Group], Noise]
_HALF = 0.5  # the share of the noise to find if there is no limit to reach
# The factor by which a module's noise may have been overestimated: kept modules that would fit if
# they were this much quieter are quantized again as a trial.
_TOO_HIGH = 4.0
_FEW = 4  # with at most this many kept modules, each is tried whatever its estimate


class OutOfBudgetError(Exception):
    """The time was up before a probe could be made."""


class NoiseSearch:
    """A search for the modules to keep in float.

    Attributes:
        ranked: the modules that can be kept, the noisiest by their estimates first.
        kept: the modules to keep in float; if none need to be, the modules that carry half of the
            noise.
        total, rest: the noise with all modules quantized, and with all but the kept ones.
        is_needed: whether the noise exceeds the limit with all modules quantized.
        reached: whether the rest is within the limit, or half of the noise if nothing is needed.
        complete: whether the time sufficed.
    """

    def __init__(
        self, estimates: Mapping[str, float], probe: Probe, fixed: Iterable[str] = ()
    ) -> None:
        """Take the estimated share of noise of each module alone.

        Args:
            probe: returns the noise of each coordinate, with only these modules quantized. Raises
                OutOfBudgetError.
            fixed: the modules that can't be kept in float.
        """
        self._estimates = estimates
        self._probe = probe
        keepable = [name for name in estimates if name not in {*fixed}]
        self.ranked = sorted(keepable, key=lambda name: -estimates[name])
        self.total: Noise = probe(frozenset(estimates))
        self.rest = self.total
        self.kept: list[str] = []
        self.is_needed = False
        self.reached = False
        self.complete = True

    def run(self, limit: float | None) -> None:
        """Keep the noisiest modules in float until no share of noise exceeds the limit.

        If all shares are within the limit already, or there is none, find the modules that carry
        half of the noise.
        """
        worst = max(self.total)
        self.is_needed = limit is not None and worst > limit
        if limit is None or not self.is_needed:
            limit = worst * _HALF
        try:
            self._keep_until(limit)
            if self.reached:
                self._give_back(limit)
        except OutOfBudgetError:
            self.complete = self.reached = False

    def _keep_until(self, limit: float) -> None:
        """Find the least number of modules, noisiest first, that reach a limit if kept in float."""
        too_few, enough = 0, len(self.ranked)
        self.kept = list(self.ranked)
        self.rest = self._measure(self.kept)
        if max(self.rest) > limit:
            return
        number = self._guess(limit)
        step = 1
        while enough - too_few > 1:
            number = min(max(number, too_few + 1), enough - 1)
            rest = self._measure(self.ranked[:number])
            if max(rest) <= limit:
                enough = number
                self.kept = self.ranked[:number]
                self.rest = rest
                number -= step
            else:
                too_few = number
                number += step
            step *= 2
            if not too_few < number < enough:
                number = (too_few + enough) // 2
        self.reached = True

    def _guess(self, limit: float) -> int:
        """Return how many modules would be kept if the estimates were right."""
        left = math.fsum(self._estimates.values())
        for number, name in enumerate(self.ranked):
            if left <= limit:
                return number
            left -= self._estimates[name]
        return len(self.ranked)

    def _give_back(self, limit: float) -> None:
        """Quantize kept modules again if the limit holds without them.

        Several are tried at a time, the least noisy first.
        """
        waiting: list[Sequence[str]] = [self.kept[::-1]]
        while waiting:
            names = waiting.pop(0)
            if not self._may_be_spare(names, limit):
                waiting = [*_halve(names), *waiting]
                continue
            kept = [name for name in self.kept if name not in names]
            rest = self._measure(kept)
            if max(rest) <= limit:
                self.kept = kept
                self.rest = rest
            else:
                waiting = [*_halve(names), *waiting]

    def _may_be_spare(self, names: Sequence[str], limit: float) -> bool:
        """Return whether quantizing some of the kept modules again is worth a probe."""
        if len(names) == len(self.kept):
            return False
        estimate = math.fsum(self._estimates[name] for name in names)
        is_quiet = max(self.rest) + estimate / _TOO_HIGH <= limit
        return is_quiet or (len(self.kept) <= _FEW and len(names) == 1)

    def _measure(self, kept: Sequence[str]) -> Noise:
        return self._probe(frozenset(self._estimates) - {*kept})


def _halve(names: Sequence[str]) -> list[Sequence[str]]:
    """Return both halves of a list of names, or an empty list for a single name."""
    if len(names) == 1:
        return []
    middle = len(names) // 2
    return [names[:middle], names[middle:]]


def to_decibels(share: float) -> float:
    """Return a share of noise as a signal-to-noise ratio in dB, infinite without noise."""
    if not share:
        return math.inf
    return -10 * math.log10(share) if math.isfinite(share) else -math.inf


def to_share(decibels: float) -> float:
    """Return the share of noise for a signal-to-noise ratio in dB."""
    return float(10 ** (-decibels / 10))


def count_one_by_one(modules: Iterable[str], kinds: Mapping[str, Group]) -> int:
    """Return the number of probes to measure all modules and kinds alone, and all together."""
    return 1 + len(list(modules)) + (len(kinds) if len(kinds) > 1 else 0)
