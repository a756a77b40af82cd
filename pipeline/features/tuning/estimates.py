"""Estimates of the figures of combinations: predictions, corrected by trials that were lowered.

An estimate decides what is lowered next, never whether a limit holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pipeline.features.tuning.ranking import Limits, Objectives, measure_violations
from pipeline.features.tuning.screening import Screening, is_screened
from pipeline.features.tuning.space import Choice, Space
from pipeline.features.tuning.trials import Trial

# Figures that differ by less than this share, or by fewer dB, count as the same.
_LEAST_SHARE, _LEAST_DECIBELS = 0.01, 0.5
# How far a prediction must break a limit if no trial has confirmed it.
_FAR_SHARE, _FAR_DECIBELS = 0.1, 3.0
_SQNR = "sqnr"


class Estimates:
    """The estimates of one search.

    Attributes:
        trials: the trials that were lowered, by combination.
    """

    def __init__(self, screening: Screening, space: Space, limits: Limits) -> None:
        self.trials: dict[Choice, Trial] = {}
        self._screening = screening
        self._limits = limits
        self._is_screened = list(map(is_screened, space.axes))
        self._errors: dict[
            str, float
        ] = {}  # the largest error of an estimate, by figure

    @property
    def untried(self) -> list[Choice]:
        """The combinations that can be packages and were not lowered."""
        return [choice for choice in self._screening.names if choice not in self.trials]

    def add(self, choice: Choice, trial: Trial) -> None:
        """Add the figures of a trial, which show how far estimates can be trusted."""
        # The first trial can't be estimated from another one.
        if self.trials:
            for name, value in self.estimate(choice).items():
                if name in trial.figures:
                    error = measure_difference(name, value, trial.figures[name])
                    self._errors[name] = max(self._errors.get(name, 0.0), error)
        self.trials[choice] = trial

    def estimate(self, choice: Choice) -> dict[str, float]:
        """Return the estimated figures of a combination.

        They are the figures of the most similar trial, changed by the difference between
        predictions.
        """
        figures = dict(self._screening.figures.get(choice, {}))
        similar = self._find_similar(choice)
        if similar is None:
            return figures
        before = self._screening.figures.get(similar, {})
        for name, value in self.trials[similar].figures.items():
            if name not in figures or name not in before:
                figures[name] = value
            elif name == "size" and 0 < value < before[name]:  # a backend packs values
                figures[name] *= value / before[name]
            else:
                figures[name] += value - before[name]
        return figures

    def _find_similar(self, choice: Choice) -> Choice | None:
        """Return the combination of the most similar trial that has figures.

        Axes that predictions don't see count first. Among equally similar trials, the last one
        counts.
        """
        similar, least = None, (len(choice) + 1, 0)
        for neighbour, trial in self.trials.items():
            distance = self._measure_distance(choice, neighbour)
            if trial.figures and distance <= least:
                similar, least = neighbour, distance
        return similar

    def _measure_distance(self, choice: Choice, neighbour: Choice) -> tuple[int, int]:
        """Return the number of axes on which combinations differ.

        The first number counts axes that predictions don't see, the second all others.
        """
        counts = [0, 0]
        for number, other_number, is_seen in zip(
            choice, neighbour, self._is_screened, strict=True
        ):
            counts[is_seen] += number != other_number
        return counts[0], counts[1]

    def is_doubtful(self, choice: Choice) -> bool:
        """Return whether similar trials exist, and none of them could be lowered.

        Similar trials differ from the combination only on axes that predictions see.
        """
        trials = [
            trial
            for neighbour, trial in self.trials.items()
            if self._measure_distance(choice, neighbour)[0] == 0
        ]
        return bool(trials) and not any(trial.figures for trial in trials)

    def count_unseen(self, choice: Choice, pending: Sequence[Choice]) -> int:
        """Return how many of a combination's alternatives no trial or pending combination has.

        Only axes that predictions don't see count.
        """
        count = 0
        choices = [*self.trials, *pending]
        for axis, number in enumerate(choice):
            if not self._is_screened[axis]:
                count += all(tried[axis] != number for tried in choices)
        return count

    def breaks_limits(self, figures: Mapping[str, float]) -> bool:
        """Return whether estimated figures break a limit; an unknown figure breaks none."""
        violations = measure_violations(figures, self._limits, list(figures))
        return any(violation > 0 for violation in violations)

    def improve(self, choice: Choice) -> dict[str, float]:
        """Return the estimate of a combination with the most favourable figures that are plausible.

        The margin is the error of earlier estimates. If a trial with the same quantization was
        measured, the estimate is returned unchanged.
        """
        figures = self.estimate(choice)
        for neighbour, trial in self.trials.items():
            if trial.figures and self._measure_distance(choice, neighbour)[1] == 0:
                return figures
        for name in figures:
            margin = max(self._errors.get(name, 0.0), find_least(name))
            sign = 1 if f"min_{name}" in self._limits else -1
            change = margin if name == _SQNR else margin * abs(figures[name])
            figures[name] += sign * change
        return figures


def find_hopeless(screening: Screening, limits: Limits) -> set[Choice]:
    """Return the combinations that are not worth a trial.

    They can't be packages, mean the same as another combination, or are predicted to break a limit
    by more than predictions are off for any faithful backend.
    """
    hopeless = set(screening.faults) | screening.duplicates
    for choice, figures in screening.figures.items():
        for name, value in figures.items():
            most = limits.get(f"max_{name}", math.inf)
            least = limits.get(f"min_{name}", -math.inf)
            margin = _FAR_DECIBELS if name == _SQNR else _FAR_SHARE * abs(value)
            # Written this way, NaN counts as hopeless, too.
            if not least - margin <= value <= most + margin:
                hopeless.add(choice)
    return hopeless


def find_least(name: str) -> float:
    """Return the least difference of a figure that counts, in dB for a ratio, else as a share."""
    return _LEAST_DECIBELS if name == _SQNR else _LEAST_SHARE


def measure_difference(name: str, value: float, reference: float) -> float:
    """Return how far apart two values of a figure are, in dB or as a share of the second."""
    if name == _SQNR:
        return abs(value - reference)
    return abs(value - reference) / (abs(reference) or 1.0)


def differs(
    figures: Mapping[str, float], rival: Mapping[str, float], objectives: Objectives
) -> bool:
    """Return whether figures differ in an objective by more than the least that counts."""
    return is_new(figures, [rival], objectives) or is_new(rival, [figures], objectives)


def is_new(
    figures: Mapping[str, float],
    rivals: Sequence[Mapping[str, float]],
    objectives: Objectives,
) -> bool:
    """Return whether each rival is worse in some objective, by more than the least that counts."""
    return all(_gains(figures, rival, objectives) for rival in rivals)


def _gains(
    figures: Mapping[str, float], rival: Mapping[str, float], objectives: Objectives
) -> bool:
    for name, direction in objectives.items():
        if name not in figures or name not in rival:
            continue
        gain = rival[name] - figures[name]
        if direction == "max":
            gain = -gain
        least = find_least(name)
        if gain > (least if name == _SQNR else least * abs(rival[name])):
            return True
    return False
