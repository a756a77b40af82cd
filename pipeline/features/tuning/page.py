"""Writes the result of a search to files.

`tune-<package>.html` shows the trade-offs, and `tune-<package>.json` has the complete result.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.config.yaml import plain
from pipeline.features.tuning.figures import format_figure
from pipeline.features.tuning.ranking import find_front
from pipeline.features.tuning.search import Search
from pipeline.features.tuning.table import (
    describe_choice,
    describe_screening,
    describe_state,
    list_rows,
)
from pipeline.features.tuning.trials import Trial
from pipeline.report.elements import Chart, DataTable, Json
from pipeline.store.files import record_bytes, write_atomically
from pipeline.store.visible import visible

_COLOURS = {
    "best": "var(--c2)",
    "front": "var(--c0)",
    "": "var(--left)",
    "no": "var(--bad)",
}
_TICKS = 4  # of an axis


def write_results(search: Search) -> str:
    """Write the page and the record, and return the page's path in the workspace."""
    workspace = search.space.workspace
    stem = f"tune-{search.space.package}"
    contents = {
        f"{stem}.json": record_bytes(make_record(search)),
        f"{stem}.html": render_page(search),
    }
    for name, content in contents.items():
        write_atomically(workspace.build / name, content, workspace.build)
    return os.path.relpath(workspace.build / f"{stem}.html", workspace.root)


def make_record(search: Search) -> dict[str, Any]:
    """Return the whole result as JSON: figures in bytes, milliseconds, dB and shares."""
    front = find_front(search.trials, search.objectives)
    space = search.space
    trials = []
    for trial in search.trials:
        values = {}
        if trial.choice is not None:
            nodes = space.select(trial.choice)
            values = {name: plain(node) for name, node in nodes.items()}
        trials.append(
            {
                "trial": trial.number,
                "present": bool(trial.name) and trial.name == search.present,
                "front": trial in front,
                "values": values,
                "figures": dict(trial.figures),
                "held_out": dict(trial.held_out),
                "faults": list(trial.faults),
            }
        )
    return {
        "format": 1,
        "package": space.package,
        "space": {name: list(map(plain, nodes)) for name, nodes in space.axes.items()},
        "objectives": search.objectives,
        "limits": search.limits,
        "seed": search.seed,
        "best": front[0].number if front else None,
        "trials": trials,
        "predictions": _list_predictions(search),
    }


def _list_predictions(search: Search) -> list[dict[str, Any]]:
    """Return the predicted figures of combinations that were not lowered, or why they can't be."""
    predictions: list[dict[str, Any]] = []
    screening = search.screening
    if screening is None:
        return predictions
    lowered = {trial.name for trial in search.trials}
    for choice in search.space.list_choices():
        if screening.names.get(choice) in lowered:
            continue
        fault = screening.faults.get(choice, "")
        if (
            not fault and choice not in screening.names
        ):  # it means the same as another combination
            continue
        values = {
            name: plain(node) for name, node in search.space.select(choice).items()
        }
        figures = screening.figures.get(choice, {})
        predictions.append({"values": values, "figures": figures, "fault": fault})
    return predictions


def render_page(search: Search) -> bytes:
    """Render the page: a chart of the first two objectives, and the table."""
    rows = list_rows(search)
    table = DataTable("trials", "All trials", rows)
    page = _template().render(
        package=search.space.package,
        chart=_make_chart(search),
        table=table,
        screening=list(describe_screening(search)),
        best=next(iter(find_front(search.trials, search.objectives)), None),
        objectives=search.objectives,
        limits={
            name: format_figure(name[4:], limit)
            for name, limit in search.limits.items()
        },
    )
    return visible(page).encode()


def _make_chart(search: Search) -> Chart | None:
    """Return the chart of the first two objectives.

    Returns None if there is only one objective, or if no trial has both figures.
    """
    names = list(search.objectives)[:2]
    trials = [
        trial
        for trial in search.trials
        if len(names) > 1 and all(name in trial.figures for name in names)
    ]
    if not trials:
        return None
    front = find_front(search.trials, search.objectives)
    dots = [_make_dot(search, trial, front, names) for trial in trials]
    ticks = [
        _make_ticks(name, [trial.figures[name] for trial in trials]) for name in names
    ]
    data = {
        "dots": dots,
        "x_title": names[0],
        "y_title": names[1],
        "x_ticks": ticks[0],
        "y_ticks": ticks[1],
    }
    legend = [
        ("best", _COLOURS["best"]),
        ("on the front", _COLOURS["front"]),
        ("another trial is better", _COLOURS[""]),
        ("breaks a limit or fails", _COLOURS["no"]),
    ]
    about = "The large dot is the current config. Point at a dot for its alternatives."
    words = f"{names[1]} by {names[0]} of {len(trials)} trials"
    return Chart(f"{names[1]} by {names[0]}", about, legend, words, "scatter", data)


def _make_dot(
    search: Search, trial: Trial, front: Sequence[Trial], names: Sequence[str]
) -> Json:
    state = describe_state(search, trial, front)
    words = [f"trial {trial.number}" + (f" ({state})" if state else "")]
    words += [
        f"{name}: {text}" for name, text in describe_choice(search, trial).items()
    ]
    words += [
        f"{name} {format_figure(name, trial.figures.get(name))}"
        for name in search.names
    ]
    words += trial.faults
    kind = ""
    if trial.faults:
        kind = "no"
    elif trial in front:
        kind = "best" if trial == front[0] else "front"
    return {
        "x": trial.figures[names[0]],
        "y": trial.figures[names[1]],
        "colour": _COLOURS[kind],
        "radius": 7 if trial.name == search.present else 4.5,
        "description": "\n".join(words),
        "front": trial in front,
    }


def _make_ticks(name: str, values: Sequence[float]) -> list[tuple[float, str]]:
    """Return values along an axis, with their labels."""
    low, high = min(values), max(values)
    if low == high:
        # An axis needs a width, even for a single value.
        low, high = low - abs(low) * 0.1 - 1e-9, high + abs(high) * 0.1 + 1e-9
    step = (high - low) / (_TICKS - 1)
    ticks = [low + number * step for number in range(_TICKS - 1)]
    return [(value, format_figure(name, value)) for value in (*ticks, high)]


@cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = Path(__file__).parent / "templates"
    environment = Environment(
        loader=FileSystemLoader(folder, encoding="utf-8"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("tune.html.j2")
