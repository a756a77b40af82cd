"""The result of a search as a table: the front first, then the other trials."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pipeline.cli.columns import columns
from pipeline.features.tuning.figures import format_figure, list_unjudged
from pipeline.features.tuning.ranking import find_front
from pipeline.features.tuning.search import Search
from pipeline.features.tuning.trials import Trial
from pipeline.store.errors import listed, plural

_HELD_OUT = "{} (held out)"
_WHY_NOT = "why not"


def list_lines(search: Search) -> Iterator[str]:
    """Yield the lines of the table: the front first, then the other trials in their order."""
    rows = list_rows(search)
    for row in rows:
        del row[_WHY_NOT]  # it may be long
    titles = [name.removeprefix("methods.") for name in rows[0]]
    cells = [list(row.values()) for row in rows]
    yield from columns([titles, *cells], rule=True)
    yield from _list_reasons(search.trials)
    front = find_front(search.trials, search.objectives)
    if not front:
        yield "no trial meets all limits"
    else:
        best = front[0]
        yield _describe_best(search, best)
        # `limits` judge trials only, so `doit` would leave the written config unjudged.
        for sentence in list_unjudged(search.folder.find(best.name)):
            yield f"trial {best.number}: {sentence}"
    yield from describe_screening(search)


def _list_reasons(trials: Iterable[Trial]) -> Iterator[str]:
    """Yield the reasons why trials can't be the best, each once with the numbers of its trials."""
    numbers: dict[str, list[str]] = {}
    for trial in trials:
        for fault in trial.faults:
            # The line in a trial's own config, which nobody wrote, tells nothing.
            place = rf"^\S*{re.escape(trial.name)}\.yaml:\d+: "
            reason = re.sub(place, "", fault) if trial.name else fault
            numbers.setdefault(reason, []).append(str(trial.number))
    for reason, trial_numbers in numbers.items():
        word = "trial" if len(trial_numbers) == 1 else "trials"
        yield f"{word} {listed(trial_numbers)}: {reason}"


def _describe_best(search: Search, best: Trial) -> str:
    """Return what the best trial gains, and how it does on inputs that played no part in it."""
    words = [f"best: trial {best.number}{_describe_gain(search, best)}"]
    for name, value in best.held_out.items():
        chosen = format_figure(name, best.figures.get(name))
        held_out = format_figure(name, value)
        words.append(
            f"{name} {chosen} on the inputs used for the choice, {held_out} on the others"
        )
    return "; ".join(words)


def _describe_gain(search: Search, best: Trial) -> str:
    """Return how the best trial compares with the present config in the first objective.

    Returns "" if it is the present config, or if the figure of that is unknown.
    """
    name = next(iter(search.objectives))
    present = [trial for trial in search.trials if trial.name == search.present]
    if best in present or not present or name not in present[0].figures:
        return ""
    before = format_figure(name, present[0].figures[name])
    return f", {name} {format_figure(name, best.figures[name])} instead of {before}"


def describe_screening(search: Search) -> Iterator[str]:
    """Yield how many combinations were lowered, and why the others were not.

    Yields nothing if there are no predictions.
    """
    screening = search.screening
    if screening is None or not screening.names:
        return
    lowered = {trial.name for trial in search.trials}
    left_out = [name for name in screening.names.values() if name not in lowered]
    words = [f"{plural(search.space.size, 'combination')}: {len(lowered)} lowered"]
    if left_out:
        programs = plural(screening.programs, "quantized program")
        words.append(f"{len(left_out)} left out by predictions from {programs}")
    reasons = Counter(screening.faults.values())
    for reason, count in reasons.items():
        words.append(f"{count} can't be: {reason}")
    yield "; ".join(words)


def list_rows(search: Search) -> list[dict[str, str]]:
    """Return the rows of the table, by the titles of its columns."""
    front = find_front(search.trials, search.objectives)
    others = [trial for trial in search.trials if trial not in front]
    rows = []
    for trial in [*front, *others]:
        row = {
            "trial": str(trial.number),
            "state": describe_state(search, trial, front),
        }
        row |= describe_choice(search, trial)
        for name in search.names:
            row[name] = format_figure(name, trial.figures.get(name))
            if name in _list_held_out(search):
                row[_HELD_OUT.format(name)] = format_figure(
                    name, trial.held_out.get(name)
                )
        row[_WHY_NOT] = "; ".join(trial.faults)
        rows.append(row)
    return rows


def describe_choice(search: Search, trial: Trial) -> dict[str, str]:
    """Return the alternatives of a trial by axis; for the present config, each is "as it is"."""
    if trial.choice is None:
        return dict.fromkeys(search.space.axes, "as it is")
    return search.space.describe(trial.choice)


def _list_held_out(search: Search) -> list[str]:
    """Return the figures that some trial has on the held-out inputs, too."""
    names = [name for trial in search.trials for name in trial.held_out]
    return list(dict.fromkeys(names))


def describe_state(search: Search, trial: Trial, front: Sequence[Trial]) -> str:
    """Return words that say whether a trial is the best, on the front, or the present config."""
    words = []
    if trial.name and trial.name == search.present:
        words.append("present")
    if trial in front:
        words.append("best" if trial == front[0] else "front")
    return ", ".join(words)
