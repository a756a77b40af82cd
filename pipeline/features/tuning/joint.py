"""One trial of each of several packages, so that the sum of their sizes holds a limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.features.tuning.figures import format_figure
from pipeline.features.tuning.ranking import find_front
from pipeline.features.tuning.trials import Trial
from pipeline.store.errors import PipelineError
from pipeline.store.sizes import human_size

_SIZE = "size"
# By the sum of sizes in bytes, the sum of losses and the trials that have it.
_Reached = dict[int, tuple[float, tuple[Trial, ...]]]


def choose_within(searches: Sequence[Any], most: int) -> tuple[list[Trial], list[str]]:
    """Return a trial of each search, and lines that say which.

    Of all choices whose sizes have at most this sum, it is the one that loses least: a trial loses
    nothing where it is the best of its front by the first objective other than size, and 1 where it
    is the worst. All sums that can be reached are looked at, so no choice is better.

    Args:
        searches: of `search.Search`, each with `size` among its objectives.
        most: bytes.

    Raises:
        PipelineError: even the smallest trials are larger.
    """
    reached: _Reached = {0: (0.0, ())}
    for search in searches:
        front = find_front(search.trials, search.objectives)
        package = search.space.package
        if _SIZE not in search.objectives:
            raise PipelineError(
                f"{package}: --max-size needs `size` in tune.objectives"
            )
        if not front:
            raise PipelineError(f"{package}: no trial holds all limits")
        reached = _extend(reached, front, measure_losses(front, search.objectives))
    fitting = {size: result for size, result in reached.items() if size <= most}
    if not fitting:
        least = human_size(min(reached))
        raise PipelineError(
            f"--max-size {human_size(most)}: the smallest trials have {least} together"
        )
    size = min(fitting, key=lambda size: (fitting[size][0], size))
    trials = list(fitting[size][1])
    lines = [f"within {human_size(most)}: {human_size(size)} together"]
    for search, trial in zip(searches, trials, strict=True):
        figures = [
            f"{name} {format_figure(name, trial.figures[name])}"
            for name in search.objectives
        ]
        lines.append(
            f"  {search.space.package}: trial {trial.number}, {', '.join(figures)}"
        )
    return trials, lines


def _extend(
    reached: _Reached, front: Sequence[Trial], losses: Sequence[float]
) -> _Reached:
    """Return the sums of sizes with a further package, each with the least loss."""
    sums: _Reached = {}
    for size, (loss, trials) in reached.items():
        for trial, further_loss in zip(front, losses, strict=True):
            total = size + int(trial.figures[_SIZE])
            result = (loss + further_loss, (*trials, trial))
            if total not in sums or result[0] < sums[total][0]:
                sums[total] = result
    return sums


def measure_losses(front: Sequence[Trial], objectives: Any) -> list[float]:
    """Return what each trial of a front loses, from 0 to 1, by the first objective but size."""
    name = next((name for name in objectives if name != _SIZE), _SIZE)
    values = [trial.figures[name] for trial in front]
    if objectives[name] == "max":
        best, worst = max(values), min(values)
    else:
        best, worst = min(values), max(values)
    spread = abs(best - worst) or 1.0
    return [abs(best - value) / spread for value in values]
