"""Chooses which combinations to lower if predictions can rank them: as few as necessary.

First come the present config and the combination that is predicted to be best, then each
alternative that predictions don't see, such as a list of partitioners, with the best quantization.
After that come combinations that are estimated to beat the best trial, and finally the rest of the
estimated front. When no estimate beats what was lowered, the search ends.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any

from pipeline.features.tuning.estimates import Estimates, differs, is_new
from pipeline.features.tuning.ranking import Limits, Objectives, measure_costs
from pipeline.features.tuning.screening import PREDICTED, Screening
from pipeline.features.tuning.space import Choice, Space
from pipeline.features.tuning.trials import Trial

_BATCH = 2  # trials that are built at once; a constant, so that all machines ask for the same

Figures = Mapping[str, float]
Batches = Generator[Sequence[Choice], Sequence[Trial], None]


def can_guide(objectives: Objectives) -> bool:
    """Return whether all objectives are predicted."""
    return all(name in PREDICTED for name in objectives)


def follow_estimates(
    screening: Screening,
    space: Space,
    present: str,
    number: int,
    objectives: Objectives,
    limits: Limits,
) -> Batches:
    """Yield combinations to lower, at most `number`, and receive the trials of each batch.

    Args:
        present: the name of the trial that the present config makes.
    """
    estimates = Estimates(screening, space, limits)
    # The present config is in the first batch, so that the search can report its gain.
    batch = [choice for choice, name in screening.names.items() if name == present]
    while len(estimates.trials) + len(batch) < number and len(batch) < _BATCH:
        choice = _choose_next(estimates, batch, objectives)
        if choice is None:
            break
        batch.append(choice)
    while batch:
        trials = yield batch
        for choice, trial in zip(batch, trials, strict=True):
            estimates.add(choice, trial)
        batch = []
        for _ in range(min(_BATCH, number - len(estimates.trials))):
            choice = _choose_next(estimates, batch, objectives)
            if choice is not None:
                batch.append(choice)


def _choose_next(
    estimates: Estimates, batch: Sequence[Choice], objectives: Objectives
) -> Choice | None:
    """Return the combination to lower next, or None if none is worth it.

    Args:
        batch: the combinations that are chosen already.
    """
    figures: dict[Choice, Figures] = {}
    for choice in estimates.untried:
        if choice not in batch:
            figures[choice] = estimates.estimate(choice)

    def rank(choice: Choice) -> tuple[Any, ...]:
        breaks = estimates.breaks_limits(figures[choice])
        return breaks, *measure_costs(figures[choice], objectives), choice

    # Alternatives that predictions don't see go first: only trials show their effect.
    unseen = {choice: estimates.count_unseen(choice, batch) for choice in figures}
    most = max(unseen.values(), default=0)
    if most:
        return min(
            (choice for choice in figures if unseen[choice]),
            key=lambda choice: (rank(choice)[0], -unseen[choice], rank(choice)),
        )
    lowered = list(estimates.trials.values())
    pending = [estimates.estimate(choice) for choice in batch]
    sound = [trial.figures for trial in lowered if not trial.faults] + pending
    failed = [trial.figures for trial in lowered if trial.faults and trial.figures]
    first = dict(list(objectives.items())[:1])
    best = sorted(sound, key=lambda rival: measure_costs(rival, objectives))[:1]
    winners, newcomers = [], []
    for choice, estimate in figures.items():
        if estimates.is_doubtful(choice) and sound:
            continue
        # A variant whose estimate matches a failed trial would fail, too.
        if not all(map(partial(differs, estimate, objectives=objectives), failed)):
            continue
        if estimates.breaks_limits(estimates.improve(choice)):
            continue
        if is_new(estimate, best, first):
            winners.append(choice)
        elif not estimates.breaks_limits(estimate) and is_new(
            estimate, sound, objectives
        ):
            newcomers.append(choice)
    return min(winners or newcomers, key=rank, default=None)
