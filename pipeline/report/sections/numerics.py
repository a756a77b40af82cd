"""How far outputs are from those of the source: figures, and a picture of errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.report import formatting as figures
from pipeline.report.charts import spreads
from pipeline.report.charts.draw import NARROW, WIDE, Chart, draw
from pipeline.report.html import tables
from pipeline.report.html.tables import Cell, Table

Json = Mapping[str, Any]


_LIMITS = {
    "max_mean_abs": "mean absolute error at most {:g}",
    "max_p999_abs": "99.9th percentile at most {:g}",
    "max_relative": "relative error at most {:g}",
    "min_sqnr": "SQNR at least {:g} dB",
    "min_cosine": "cosine at least {:g}",
    "min_agreement": "greatest values at the same place in at least {:.1%} of rows",
}


def limits(settings: Json) -> str:
    told = []
    if "atol" in settings:
        told.append(
            f"absolute error at most {settings['atol']:g} + {settings['rtol']:g} × |expected|"
        )
    given = ((words, settings.get(name)) for name, words in _LIMITS.items())
    told += [words.format(limit) for words, limit in given if limit is not None]
    return f"Held to: {'; '.join(told)}." if told else ""


def methods(report: Json) -> Table:
    places = report.get("places", {})
    rows = [
        (
            Cell(
                method["method"],
                kind="name",
                note="with state" if method["state"] else method["kind"],
                href=tables.source(places.get(f"methods.{method['method']}")).href,
            ),
            tables.verdict(method["ok"], bool(method["not_run"])),
            Cell(str(len(method["runs"])), len(method["runs"])),
            *(
                tables.figure(method.get(name), style(method.get(name)))
                if method["runs"]
                else Cell(figures.NOTHING, figures.number(None), kind="soft")
                for name, _, style in _FIGURES
            ),
        )
        for method in report["methods"]
    ]
    head = ("method", "verdict", "calls", *(title for _, title, _ in _FIGURES))
    caption = "Worst figures of each method"
    return tables.table("methods", caption, head, rows, range(2, len(head)))


_FIGURES = (
    ("max_abs", "max error", figures.error),
    ("p999_abs", "99.9 %", figures.error),
    ("mean_abs", "mean", figures.error),
    ("relative", "relative", figures.error),
    ("sqnr_db", "SQNR", figures.decibel),
    ("cosine", "cosine", figures.ratio),
    ("agreement", "agreement", figures.share),
)


def _outputs(report: Json) -> Iterator[tuple[Json, Json, int, Json]]:
    for method in report["methods"]:
        for run in method["runs"]:
            for index, output in enumerate(run["outputs"]):
                yield method, run, index, output


def _where(run: Json) -> str:
    if run.get("step"):
        return f"{run['origin']} (call {run['step']} from {run['sequence']})"
    return str(run["origin"])


def _failed(method: Json, run: Json, index: int) -> bool:
    return any(
        failure["inputs"] in (_where(run), run["origin"])
        and failure["output"] in ("", f"output[{index}]")
        for failure in method["failures"]
    )


_MOST_SETS = 16  # of one output in the picture of errors; the worst


def errors(report: Json) -> Chart | None:
    """A line for each output and input set; of the calls on one set in a method with state, the
    worst."""
    worst: dict[tuple[str, str], dict[str, Any]] = {}
    limits: dict[str, float] = {}
    unbounded = 0
    for method, run, index, output in _outputs(report):
        several = len(run["outputs"]) > 1
        row = f"{method['method']}, output {index}" if several else str(method["method"])
        limit = (method["limits"] or report["settings"]).get("atol")
        if limit:
            limits[row] = limit
        if not isinstance(output["max_abs"], int | float):
            unbounded += 1
            continue
        ok = not _failed(method, run, index)
        figure = {
            "row": row,
            "mean": _plain(output["mean_abs"]),
            "p999": _plain(output.get("p999_abs")),
            "max": output["max_abs"],
            "ok": ok,
            "told": f"{row}, {_where(run)}: mean {figures.error(output['mean_abs'])}, 99.9 % "
            f"{figures.error(output.get('p999_abs'))}, max {figures.error(output['max_abs'])}"
            + ("" if ok else ", failed"),
        }
        key = (row, str(run["origin"]))
        if key not in worst or worst[key]["max"] < figure["max"]:
            worst[key] = figure
    rows = _most(list(worst.values()))
    wide, narrow = (spreads.errors(rows, limits, width) for width in (WIDE, NARROW))
    if wide is None or narrow is None:
        return None
    about = (
        "A line per input set, from the mean over the 99.9th percentile (tick) to the greatest "
        "absolute error (dot), on a logarithmic axis. Dashed: the absolute tolerance."
    )
    if any(run.get("case") == "large" for _, run, _, _ in _outputs(report)):
        about += " Sets of large values lie further right: their limits grow with the outputs."
    if unbounded:
        about += f" {figures.count(unbounded, 'output')} not drawn, whose errors have no bound."
    legend = [("within limits", "var(--c0)"), ("failed", "var(--bad)")]
    legend = legend if any(not row["ok"] for row in rows) else []
    svg = draw(wide, narrow, "Distribution of absolute errors by method and input set")
    return Chart("Errors.", about, legend, svg)


def _most(rows: Sequence[Json]) -> list[Json]:
    """Of each output the sets with the greatest errors, in their order."""
    kept = []
    for name in dict.fromkeys(row["row"] for row in rows):
        own = [row for row in rows if row["row"] == name]
        least = sorted((row["max"] for row in own), reverse=True)[:_MOST_SETS][-1]
        kept += [row for row in own if row["max"] >= least][:_MOST_SETS]
    return kept


def _plain(value: float | str | None) -> float:
    return value if isinstance(value, int | float) else 0.0


def skipped(report: Json) -> Table:
    rows = [
        (Cell(m["method"], kind="name"), Cell("all"), Cell(m["not_run"], kind="wide"))
        for m in report["methods"]
        if m["not_run"]
    ]
    rows += [
        (
            Cell(method["method"], kind="name"),
            Cell(skip["origin"]),
            Cell(f"the source program itself fails: {skip['reason']}", kind="wide"),
        )
        for method in report["methods"]
        for skip in method["skipped"]
    ]
    return tables.table("skipped", "Not run", ("method", "input set", "why"), rows)


def calls(report: Json) -> Table:
    """Those that failed first."""
    outputs = sorted(_outputs(report), key=lambda each: not _failed(each[0], each[1], each[2]))
    rows = [
        (
            Cell(method["method"], kind="name"),
            Cell(_where(run) + (f", output {index}" if len(run["outputs"]) > 1 else "")),
            Cell(output["mismatch"], kind="bad")
            if output.get("mismatch")
            else tables.verdict(not _failed(method, run, index)),
            *(tables.figure(output.get(n), style(output.get(n))) for n, _, style in _FIGURES),
        )
        for method, run, index, output in outputs
    ]
    titles = (title for _, title, _ in _FIGURES)
    head = ("method", "input set", "verdict", *titles)
    return tables.table("calls", "Outputs of every call", head, rows, range(3, len(head)))
