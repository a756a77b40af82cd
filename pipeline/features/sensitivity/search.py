"""Finds the modules that carry the noise of a quantization, in few probes.

A probe quantizes some modules and leaves the others in float; it gives the share of noise in the
signal of each output in each call. Noise of different modules is taken to add up, as that of
independent errors does, so a group whose noise is small is never taken apart. Whatever follows from
that assumption is measured before it counts. Knows no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

Group = frozenset[str]
Noise = tuple[float, ...]
Probe = Callable[[Group], Noise]
# The share of its whole from which on a part that follows by subtraction is believed.
_BELIEVED = 0.2
# The share of noise beyond which that of several modules does not add up any more: it saturates.
_MOST_ADDITIVE = 0.1
_NUMBER = re.compile(r"\d+")
_HALF = 0.5  # the share of the noise that is looked for where nothing has to be reached


class OutOfBudgetError(Exception):
    """A probe was not made, since the time was spent."""


class NoiseSearch:
    """A search for the modules to keep in float.

    Attributes:
        parts: the noise of each group of modules that was not taken apart any further, alone.
        subtracted: those of them whose noise follows from that of others, and was not measured.
        kept: the modules to keep in float, in the order in which they were found.
        total, rest: the noise with all modules quantized, and with all but those kept.
        is_needed: whether the noise exceeds the limit with all modules quantized.
        reached: whether the rest is within the limit, or half of the noise where nothing is needed.
        complete: whether the time sufficed.
    """

    def __init__(
        self, modules: Sequence[str], probe: Probe, fixed: Iterable[str] = ()
    ) -> None:
        """Take the modules, those next to each other that are likely to be alike.

        Args:
            probe: gives the noise of each coordinate, with these modules quantized alone. Raises
                OutOfBudgetError.
            fixed: those that can't be kept in float.
        """
        self._modules = list(modules)
        self._probe = probe
        self._fixed = frozenset(fixed)
        self.total: Noise = probe(frozenset(modules))
        self.rest = self.total
        self.parts: dict[Group, Noise] = {frozenset(modules): self.total}
        self.subtracted: set[Group] = set()
        self._doubtful: set[Group] = set()
        self.kept: list[str] = []
        self.reached = False
        self.complete = True
        self.is_needed = False

    def run(self, limit: float | None) -> None:
        """Keep the noisiest modules in float until no share of noise exceeds the limit. Where all
        are within it already, or there is none, find those that carry half of the noise."""
        worst = max(self.total)
        self.is_needed = limit is not None and worst > limit
        try:
            if limit is None or not self.is_needed:
                self._keep_until(worst * _HALF)
                return
            self._keep_until(limit)
            if self.reached:
                self._give_back(limit)
        except OutOfBudgetError:
            self.complete = False
            self.reached = False

    def _keep_until(self, limit: float) -> None:
        while max(self.rest) > limit:
            place = self.rest.index(max(self.rest))
            group = self._find_noisiest(place)
            if group is None:
                return
            # What is kept for its noise has to be as noisy as that.
            is_single = len(group) == 1 and group in self.subtracted
            if group in self._doubtful or is_single:
                self._measure(group)
            elif len(group) > 1:
                self._take_apart(group, place)
            else:
                self.kept += group
                self.rest = _subtract(self.rest, self.parts[group])
                if max(self.rest) <= limit or self._find_noisiest(place) is None:
                    self.rest = self._probe(self._quantized())
        self.reached = True

    def _find_noisiest(self, place: int) -> Group | None:
        """Return the group that adds most to a coordinate; None where none is left to be kept."""
        left = [
            group
            for group in self.parts
            if not group <= self._fixed and not group <= {*self.kept}
        ]
        return max(left, key=lambda group: self.parts[group][place], default=None)

    def _measure(self, group: Group) -> None:
        self.subtracted.discard(group)
        self._doubtful.discard(group)
        self.parts[group] = self._probe(group)

    def _take_apart(self, group: Group, place: int) -> None:
        """Halve a group: one half is measured, the other follows from it by subtraction."""
        members = [name for name in self._modules if name in group]
        middle = len(members) // 2
        half = frozenset(members[:middle])
        remainder = frozenset(members[middle:])
        noise = self._probe(half)
        whole = self.parts.pop(group)
        self.parts[half] = noise
        self.parts[remainder] = difference = _subtract(whole, noise)
        self.subtracted.discard(group)
        self.subtracted.add(remainder)
        is_small = difference[place] < _BELIEVED * whole[place]
        if is_small or max(whole) > _MOST_ADDITIVE:
            self._doubtful.add(remainder)

    def _quantized(self) -> Group:
        return frozenset(self._modules) - {*self.kept}

    def _give_back(self, limit: float) -> None:
        """Quantize kept modules again without which the limit holds too, the least noisy first."""
        for name in sorted(self.kept, key=lambda name: max(self._noise_of(name))):
            together = [
                a + b for a, b in zip(self.rest, self._noise_of(name), strict=True)
            ]
            if len(self.kept) == 1 or max(together) > limit:
                continue
            rest = self._probe(self._quantized() | {name})
            if max(rest) <= limit:
                self.kept.remove(name)
                self.rest = rest

    def _noise_of(self, name: str) -> Noise:
        return self.parts[frozenset([name])]


def _subtract(noise: Noise, part: Noise) -> Noise:
    pairs = zip(noise, part, strict=True)
    return tuple(max(a - b, 0.0) if math.isfinite(a) else a for a, b in pairs)


def to_decibels(share: float) -> float:
    """Return the signal to noise ratio in dB of a share of noise; infinite without noise."""
    if not share:
        return math.inf
    return -10 * math.log10(share) if math.isfinite(share) else -math.inf


def to_share(decibels: float) -> float:
    """Return the share of noise in a signal that a ratio in dB leaves."""
    return float(10 ** (-decibels / 10))


def order_alike(modules: Iterable[str]) -> list[str]:
    """Return modules in their order, but with those of one role in repeated blocks, as
    `layers.0.dense` and `layers.1.dense`, next to each other: they tend to be equally noisy, so
    that a group of them is seldom taken apart."""
    by_role: dict[str, list[str]] = {}
    for name in modules:
        by_role.setdefault(_NUMBER.sub("#", name), []).append(name)
    return [name for names in by_role.values() for name in names]


def count_one_by_one(modules: Sequence[str], kinds: Mapping[str, Group]) -> int:
    """Return the probes that it takes to measure all modules and kinds alone, and all together."""
    return 1 + len(modules) + (len(kinds) if len(kinds) > 1 else 0)
