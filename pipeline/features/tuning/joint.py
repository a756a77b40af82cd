"""One trial of each of several packages, so that sums over all of them hold an app's limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.features.tuning.figures import format_figure, read_figures
from pipeline.features.tuning.ranking import find_front
from pipeline.features.tuning.trials import Trial
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError

Sums = tuple[float, ...]  # one for each limited figure
# By the sums that can be reached, the least sum of losses and the trials that have it.
_Reached = dict[Sums, tuple[float, tuple[Trial, ...]]]


def name_limits(
    searches: Sequence[Any], sizes: Mapping[str, float | None]
) -> dict[str, float]:
    """Return limits by figure, and have all searches read these figures.

    Memory is the peak on a device where every search has one and the same such figure, else what
    methods plan.

    Args:
        sizes: those of `size` and `memory`, in bytes; None for no limit.
    """
    common = set.intersection(*(set(search.names) for search in searches))
    peaks = sorted(name for name in common if name.startswith("peak_memory."))
    memory = peaks[0] if len(peaks) == 1 else "planned_memory"
    named = {"size": sizes["size"], memory: sizes["memory"]}
    limits = {name: float(most) for name, most in named.items() if most is not None}
    for search in searches:
        search.names = list(dict.fromkeys([*search.names, *limits]))
    return limits


def read_constants(
    plan: Plan, packages: Sequence[str], limits: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Return the limited figures of packages as they were built. Raises PipelineError where one is
    not."""
    by_package = {}
    for package in packages if limits else ():
        figures = read_figures(plan.workspace.package(package), list(limits))
        lacking = [name for name in limits if name not in figures]
        if lacking:
            hint = f"run `doit validate:{package}` first"
            raise PipelineError(f"{package}: no figure {lacking[0]} of it; {hint}")
        by_package[package] = figures
    return by_package


def choose_within(
    searches: Sequence[Any],
    limits: Mapping[str, float],
    constants: Mapping[str, Mapping[str, float]],
) -> tuple[list[Trial], list[str]]:
    """Return a trial of each search, and lines that say which.

    Of all choices whose sums hold the limits, it is the one that loses least: a trial loses nothing
    where it is the best of its front by the first objective that has no limit, and 1 where it is
    the worst. Only choices that another one beats in all sums and in loss are passed over, so no
    choice is better.

    Args:
        searches: of `search.Search`, whose trials have the limited figures.
        limits: the greatest sum by figure, in bytes.
        constants: the figures of packages without alternatives, which count too, by package.

    Raises:
        PipelineError: no choice holds the limits, or a package has no sound trial.
    """
    start = tuple(
        sum(figures[name] for figures in constants.values()) for name in limits
    )
    reached: _Reached = {start: (0.0, ())}
    for search in searches:
        front = _find_joint_front(search, limits)
        if not front:
            raise PipelineError(f"{search.space.package}: no trial holds all limits")
        losses = measure_losses(front, search.objectives, limits)
        reached = _drop_beaten(_extend(reached, front, losses, limits))
    fitting = {
        sums: result
        for sums, result in reached.items()
        if _fits(sums, tuple(limits.values()))
    }
    if not fitting:
        least = _describe_least(limits, list(reached))
        raise PipelineError(
            f"no trials hold the limits together; the least are {least}"
        )
    sums = min(fitting, key=lambda sums: (fitting[sums][0], sums))
    trials = list(fitting[sums][1])
    return trials, _list_choice(searches, trials, limits, sums)


def _find_joint_front(search: Any, limits: Mapping[str, float]) -> list[Trial]:
    """Return the trials that no other one beats in objectives and limited figures."""
    objectives = {**dict.fromkeys(limits, "min"), **search.objectives}
    measured = [
        trial
        for trial in search.trials
        if all(name in trial.figures for name in objectives)
    ]
    return find_front(measured, objectives)


def _extend(
    reached: _Reached,
    front: Sequence[Trial],
    losses: Sequence[float],
    limits: Mapping[str, float],
) -> _Reached:
    """Return the sums with a further package, each with the least loss."""
    extended: _Reached = {}
    for sums, (loss, trials) in reached.items():
        for trial, further_loss in zip(front, losses, strict=True):
            figures = [trial.figures[name] for name in limits]
            total = tuple(map(sum, zip(sums, figures, strict=True)))
            result = (loss + further_loss, (*trials, trial))
            if total not in extended or result[0] < extended[total][0]:
                extended[total] = result
    return extended


def _drop_beaten(reached: _Reached) -> _Reached:
    """Return the sums without those that others beat: no sum is greater, and they lose no more."""
    front: _Reached = {}
    for sums, result in sorted(reached.items(), key=lambda item: (item[0], item[1][0])):
        beaten = any(
            loss <= result[0] and _fits(rival, sums)
            for rival, (loss, _) in front.items()
        )
        if not beaten:
            front[sums] = result
    return front


def _fits(sums: Sums, bounds: Sums) -> bool:
    """Tell whether no sum is greater than its bound."""
    return all(total <= bound for total, bound in zip(sums, bounds, strict=True))


def measure_losses(
    front: Sequence[Trial], objectives: Mapping[str, str], limited: Any = ("size",)
) -> list[float]:
    """Return what each trial of a front loses, from 0 to 1, by the first objective that has no
    limit."""
    first = next(iter(objectives))
    name = next((name for name in objectives if name not in limited), first)
    values = [trial.figures[name] for trial in front]
    if objectives[name] == "max":
        best, worst = max(values), min(values)
    else:
        best, worst = min(values), max(values)
    spread = abs(best - worst) or 1.0
    return [abs(best - value) / spread for value in values]


def _describe_least(limits: Mapping[str, float], reached: Sequence[Sums]) -> str:
    """Say what the least sums are, each by itself."""
    words = []
    for place, (name, most) in enumerate(limits.items()):
        least = format_figure(name, min(sums[place] for sums in reached))
        words.append(f"{name} {least} of at most {format_figure(name, most)}")
    return ", ".join(words)


def _list_choice(
    searches: Sequence[Any],
    trials: Sequence[Trial],
    limits: Mapping[str, float],
    sums: Sums,
) -> list[str]:
    words = []
    for total, (name, most) in zip(sums, limits.items(), strict=True):
        bound = format_figure(name, most)
        words.append(f"{name} {format_figure(name, total)} of at most {bound}")
    lines = [f"together: {', '.join(words)}"]
    for search, trial in zip(searches, trials, strict=True):
        figures = [
            f"{name} {format_figure(name, trial.figures[name])}"
            for name in dict.fromkeys([*search.objectives, *limits])
        ]
        package = search.space.package
        lines.append(f"  {package}: trial {trial.number}, {', '.join(figures)}")
    return lines
