"""The limits on trials, the trials that no other trial beats, and the best of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from pipeline.features.tuning.figures import format_figure, split_limit
from pipeline.features.tuning.trials import Trial
from pipeline.store.sizes import parse_size

Objectives = Mapping[str, str]  # by figure, `min` or `max`
Limits = Mapping[str, float]  # by `min_<figure>` or `max_<figure>`


def parse_limits(written: Mapping[str, float | str]) -> dict[str, float]:
    """Return limits as numbers; sizes are in bytes."""
    limits = {}
    for name, value in written.items():
        if isinstance(value, str):
            value = parse_size(value) or 0
        limits[name] = float(value)
    return limits


def measure_violations(
    figures: Mapping[str, float], limits: Limits, names: Sequence[str]
) -> tuple[float, ...]:
    """Return by how much figures break each limit on one of these names, as a share of the limit.

    It is 1 if the figure is unknown, and at most 0 if the limit holds.
    """
    violations = []
    for name, limit in limits.items():
        side, figure = split_limit(name)
        if figure not in names:
            continue
        excess = 1.0
        if figure in figures:
            difference = figures[figure] - limit
            excess = difference if side == "max" else -difference
            excess /= abs(limit) or 1.0
        violations.append(excess)
    return tuple(violations)


def describe_violations(
    figures: Mapping[str, float], limits: Limits, names: Sequence[str]
) -> Iterator[str]:
    """Yield a sentence for each limit on one of these names that figures break."""
    for name, limit in limits.items():
        _, figure = split_limit(name)
        if figure not in names:
            continue
        value = figures.get(figure)
        bound = f"{name} {format_figure(figure, limit)}"
        if value is None:
            yield f"no figure {figure} for the limit {bound}"
        elif measure_violations(figures, {name: limit}, names)[0] > 0:
            yield f"{figure} {format_figure(figure, value)} breaks {bound}"


def is_better(
    figures: Mapping[str, float], others: Mapping[str, float], objectives: Objectives
) -> bool:
    """Return whether figures are as good as others in all objectives, and better in one."""
    pairs = [
        (_cost(figures, name, objectives), _cost(others, name, objectives))
        for name in objectives
    ]
    no_worse = all(cost <= rival_cost for cost, rival_cost in pairs)
    return no_worse and any(cost < rival_cost for cost, rival_cost in pairs)


def find_front(trials: Sequence[Trial], objectives: Objectives) -> list[Trial]:
    """Return the trials without faults that no other trial beats.

    They are sorted, the best by the first objective first. Of several with the same figures, only
    the first counts.
    """
    sound = [trial for trial in trials if not trial.faults]
    front: list[Trial] = []
    for trial in sorted(
        sound, key=lambda trial: (_rank(trial, objectives), trial.number)
    ):
        beaten = any(
            is_better(other.figures, trial.figures, objectives)
            or _rank(other, objectives) == _rank(trial, objectives)
            for other in front
        )
        if not beaten:
            front.append(trial)
    return front


def _rank(trial: Trial, objectives: Objectives) -> tuple[float, ...]:
    return measure_costs(trial.figures, objectives)


def measure_costs(
    figures: Mapping[str, float], objectives: Objectives
) -> tuple[float, ...]:
    """Return the sort key of figures: the objectives in their order, the lower the better.

    An unknown figure is the worst.
    """
    return tuple(_cost(figures, name, objectives) for name in objectives)


def _cost(figures: Mapping[str, float], name: str, objectives: Objectives) -> float:
    if name not in figures:
        return math.inf
    if objectives[name] == "max":
        return -figures[name]
    return figures[name]
