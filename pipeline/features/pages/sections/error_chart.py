"""The chart of errors relative to their limits: a dot for each output and input set."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.features.pages.sections.call_outputs import Output, outputs
from pipeline.report.elements import Chart, Json
from pipeline.report.formatting import error
from pipeline.store.errors import plural

_MOST_ROWS = 12  # in the chart: the outputs nearest to their limits
_MOST_SETS = 16  # per output in the chart of errors: the worst


def errors_by_limit(report: Json) -> Chart | None:
    """Draw a dot for each output and input set: its error divided by its limit.

    If a method with state is called several times on one input set, the worst call is drawn.
    Returns None if every output is exact or none has a limit.
    """
    worst: dict[tuple[str, str], tuple[float, Output]] = {}
    lacking = 0
    for output in outputs(report):
        ratio = _of_limit(output, report)
        if not isinstance(ratio, int | float):
            lacking += 1
            continue
        place = output.method["method"] + output.suffix, output.run["origin"]
        if place not in worst or ratio > worst[place][0]:
            worst[place] = ratio, output
    dots = [_dot(row, ratio, output) for (row, _), (ratio, output) in worst.items()]
    rows = _rank_rows(dots)
    if len(rows) > _MOST_ROWS:
        dots = [dot for dot in dots if dot["row"] in rows[:_MOST_ROWS]]
        dots.sort(key=lambda dot: rows.index(dot["row"]))
    drawn = [dot for dot in _most_sets(dots) if dot["ratio"] > 0]
    if not drawn:
        return None
    about = (
        "A dot for each input set: the error divided by its nearest limit, on a logarithmic "
        "axis. Dashed: 1, the limit. Hover or tap for figures."
    )
    if len(rows) > _MOST_ROWS:
        about += f" The {_MOST_ROWS} of {len(rows)} outputs closest to their limits."
    if lacking:
        about += (
            f" {plural(lacking, 'output')} not drawn: no limit, or an unbounded error."
        )
    legend: list[tuple[str, str]] = []
    if not all(dot["ok"] for dot in dots):
        legend = [("within limits", "var(--c0)"), ("failed", "var(--bad)")]
    label = "Errors divided by their limits, by method and input set"
    data = {"dots": drawn}
    return Chart("Errors by their limits.", about, legend, label, "errors", data)


def _rank_rows(dots: Sequence[Json]) -> list[str]:
    """Return the rows of the dots, the row with the greatest ratio first."""
    greatest: dict[str, float] = {}
    for dot in dots:
        greatest[dot["row"]] = max(dot["ratio"], greatest.get(dot["row"], 0.0))
    return sorted(greatest, key=lambda row: -greatest[row])


def _of_limit(output: Output, report: Json) -> float | str | None:
    """Return the greatest ratio of an output's errors to their limits."""
    if "of_limit" in output.errors:
        recorded: float | str | None = output.errors["of_limit"]
        return recorded
    # An older record has no ratio.
    limit = (output.method["limits"] or report["settings"]).get("atol")
    largest = output.errors["max_abs"]
    if not limit or not isinstance(largest, int | float):
        return None
    return float(largest / limit)


def _dot(row: str, ratio: float, output: Output) -> Json:
    errors = output.errors
    figures = ", ".join(
        (
            f"mean {error(errors.get('mean_abs'))}",
            f"99.9 % {error(errors.get('p999_abs'))}",
            f"max {error(errors.get('max_abs'))}",
        )
    )
    about = f"{row}, {output.where}: {error(ratio)} of its limit; {figures}"
    if not output.ok:
        about += ", failed"
    return {"row": row, "ratio": ratio, "ok": output.ok, "description": about}


def _most_sets(dots: Sequence[Json]) -> list[Json]:
    """Keep the dots with the greatest errors of each row, in order."""
    dots_by_row: dict[str, list[Json]] = {}
    for dot in dots:
        dots_by_row.setdefault(dot["row"], []).append(dot)
    shown: list[Json] = []
    for row_dots in dots_by_row.values():
        ratios = sorted((dot["ratio"] for dot in row_dots), reverse=True)
        least = ratios[:_MOST_SETS][-1]
        shown += [dot for dot in row_dots if dot["ratio"] >= least][:_MOST_SETS]
    return shown
