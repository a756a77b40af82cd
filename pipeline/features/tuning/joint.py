"""Chooses one trial of each of several packages, so that their sums stay within an app's limits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.features.tuning.figures import format_figure, read_figures
from pipeline.features.tuning.ranking import find_front
from pipeline.features.tuning.sharing import FamilyWeights, measure_apart
from pipeline.features.tuning.trials import Trial
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError, listed
from pipeline.store.sizes import human_size

Sums = tuple[float, ...]  # one for each limited figure
_Chosen = tuple[tuple[str, Trial], ...]  # trials by package
_Option = tuple[Sums, float, _Chosen]  # sums, sum of losses
# For each reachable tuple of sums, the least total loss and the trials that have it.
_Reached = dict[Sums, tuple[float, _Chosen]]
_MOST_CHOICES = 20_000  # of trials in a family


def name_limits(
    searches: Sequence[Any], sizes: Mapping[str, float | None]
) -> dict[str, float]:
    """Return limits by figure, and make all searches read these figures.

    Memory is the peak on a device if all searches have exactly one such figure in common, else the
    memory that methods plan.

    Args:
        sizes: the limits on `size` and `memory`, in bytes; None for no limit.
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
    """Return the limited figures of built packages, each as if it shared nothing.

    Raises PipelineError if a package has no such figure.
    """
    by_package = {}
    for package in packages if limits else ():
        figures = read_figures(plan.workspace.package(package), list(limits))
        lacking = [name for name in limits if name not in figures]
        if lacking:
            hint = f"run `doit validate:{package}` first"
            raise PipelineError(f"{package}: has no figure {lacking[0]}; {hint}")
        if "size" in figures:
            figures["size"] = measure_apart(plan, package) or figures["size"]
        by_package[package] = figures
    return by_package


def choose_within(
    searches: Sequence[Any],
    limits: Mapping[str, float],
    constants: Mapping[str, Mapping[str, float]],
    families: Sequence[FamilyWeights] = (),
) -> tuple[list[Trial], list[str]]:
    """Return a trial of each search, and lines that describe the choice.

    It is the choice with the least loss among all choices whose sums are within the limits. By the
    first objective without a limit, the best trial of a search's front loses 0, and the worst 1.
    Only choices that another one beats in all sums and in loss are skipped, so no choice is better.

    Args:
        searches: `search.Search` objects, whose trials have the limited figures.
        limits: the greatest sum by figure, in bytes.
        constants: the figures of packages without alternatives, which count too, by package.
        families: the families of several of these packages, whose common weights count once.

    Raises:
        PipelineError: no choice is within the limits, or a package has no sound trial.
    """
    start = tuple(
        sum(figures[name] for figures in constants.values()) for name in limits
    )
    reached: _Reached = {start: (0.0, ())}
    for group, weights in _group(searches, families):
        options = _list_options(group, weights, limits)
        reached = _drop_beaten(_extend(reached, options))
    fitting = {
        sums: result
        for sums, result in reached.items()
        if _fits(sums, tuple(limits.values()))
    }
    if not fitting:
        least = _describe_least(limits, list(reached))
        raise PipelineError(
            f"no combination of trials meets the limits; the minimum is {least}"
        )
    sums = min(fitting, key=lambda sums: (fitting[sums][0], sums))
    by_package = dict(fitting[sums][1])
    trials = [by_package[search.space.package] for search in searches]
    lines = _list_choice(searches, trials, limits, sums)
    repeated = 0
    for weights in families:
        names = [by_package[package].name for package in weights.packages]
        repeated += weights.count_repeated(names)
    if repeated and "size" in limits:
        lines.insert(
            1, f"  {human_size(repeated)} that packages of a family share count once"
        )
    return trials, lines


def _group(
    searches: Sequence[Any], families: Sequence[FamilyWeights]
) -> Iterator[tuple[list[Any], FamilyWeights | None]]:
    """Yield groups of searches whose trials are chosen together.

    Each family is a group; each other search is a group by itself.
    """
    by_package = {search.space.package: search for search in searches}
    for weights in families:
        yield [by_package.pop(package) for package in weights.packages], weights
    for search in by_package.values():
        yield [search], None


def _list_options(
    group: Sequence[Any], weights: FamilyWeights | None, limits: Mapping[str, float]
) -> Iterator[_Option]:
    """Yield each choice of one trial per search: its sums, its loss, and the trials by package.

    In a family, all trials count, since a trial that another one beats may share more weights.

    Raises:
        PipelineError: a package has no sound trial, or a family has too many choices.
    """
    trials: list[list[tuple[str, Trial, float]]] = []
    for search in group:
        package = search.space.package
        front = _find_joint_front(search, limits)
        if not front:
            raise PipelineError(f"{package}: no trial meets all limits")
        candidates = front
        if weights is not None:
            candidates = [
                trial for trial in _list_measured(search, limits) if not trial.faults
            ]
        losses = measure_losses(front, search.objectives, limits, candidates)
        trials.append(
            [(package, *pair) for pair in zip(candidates, losses, strict=True)]
        )
    number = math.prod(map(len, trials))
    if number > _MOST_CHOICES:
        packages = listed([search.space.package for search in group])
        fault = f"the family of {packages} has {number:,} choices of trials"
        raise PipelineError(
            f"{fault}, but at most {_MOST_CHOICES:,} are compared; set --trials"
        )
    for choice in itertools.product(*trials):
        sums = [sum(trial.figures[name] for _, trial, _ in choice) for name in limits]
        if weights is not None and "size" in limits:
            repeated = weights.count_repeated([trial.name for _, trial, _ in choice])
            sums[list(limits).index("size")] -= repeated
        loss = sum(loss for *_, loss in choice)
        yield tuple(sums), loss, tuple((package, trial) for package, trial, _ in choice)


def _find_joint_front(search: Any, limits: Mapping[str, float]) -> list[Trial]:
    """Return the trials that no other trial beats in objectives and limited figures."""
    objectives = {**dict.fromkeys(limits, "min"), **search.objectives}
    return find_front(_list_measured(search, limits), objectives)


def _list_measured(search: Any, limits: Mapping[str, float]) -> list[Trial]:
    """Return the trials that have all objectives and limited figures."""
    names = {*limits, *search.objectives}
    return [trial for trial in search.trials if names <= set(trial.figures)]


def _extend(reached: _Reached, options: Iterable[_Option]) -> _Reached:
    """Return the sums with further packages added, each with the least loss."""
    extended: _Reached = {}
    for further, further_loss, further_trials in options:
        for sums, (loss, trials) in reached.items():
            total = tuple(map(sum, zip(sums, further, strict=True)))
            result = (loss + further_loss, (*trials, *further_trials))
            # Limits can't distinguish equal sums, so only the least loss matters.
            if total not in extended or result[0] < extended[total][0]:
                extended[total] = result
    return extended


def _drop_beaten(reached: _Reached) -> _Reached:
    """Return the sums that no others beat by being no greater and losing no more."""
    front: _Reached = {}
    # Sorted by sums, so that whatever beats an entry comes before it.
    for sums, result in sorted(reached.items(), key=lambda item: (item[0], item[1][0])):
        beaten = any(
            loss <= result[0] and _fits(rival, sums)
            for rival, (loss, _) in front.items()
        )
        if not beaten:
            front[sums] = result
    return front


def _fits(sums: Sums, bounds: Sums) -> bool:
    """Return whether no sum is greater than its bound."""
    return all(total <= bound for total, bound in zip(sums, bounds, strict=True))


def measure_losses(
    front: Sequence[Trial],
    objectives: Mapping[str, str],
    limited: Any = ("size",),
    trials: Sequence[Trial] | None = None,
) -> list[float]:
    """Return the loss of each trial by the first objective without a limit.

    It is from 0 to 1 on the front, and may be more for a trial that is worse than the front.

    Args:
        trials: by default the trials of the front.
    """
    first = next(iter(objectives))
    name = next((name for name in objectives if name not in limited), first)
    values = [trial.figures[name] for trial in front]
    if objectives[name] == "max":
        best, worst = max(values), min(values)
    else:
        best, worst = min(values), max(values)
    spread = abs(best - worst) or 1.0
    losses = []
    for trial in front if trials is None else trials:
        losses.append(abs(best - trial.figures[name]) / spread)
    return losses


def _describe_least(limits: Mapping[str, float], reached: Sequence[Sums]) -> str:
    """Return the least value of each sum, taken separately, with its limit."""
    words = []
    for place, (name, most) in enumerate(limits.items()):
        least = format_figure(name, min(sums[place] for sums in reached))
        words.append(f"{name} {least}, at most {format_figure(name, most)} allowed")
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
