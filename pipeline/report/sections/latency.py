"""How long methods take on the host."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pipeline.report import formatting as figures
from pipeline.report.charts import spreads
from pipeline.report.charts.draw import chart
from pipeline.report.html import tables
from pipeline.report.html.tables import Cell

Json = Mapping[str, Any]


def latency(report: Json) -> dict[str, Any]:
    known = [(m["method"], m["latency"]) for m in report["methods"] if m.get("latency")]
    if not known:
        return {"latency": None}
    points = [
        {"row": method, "what": what, "told": f"{method}, {words}: {_spread(each[key])}"}
        | {name: each[key][name] for name in ("low", "median", "high")}
        for method, each in known
        for what, words, key in (
            ("package", "the package", "steady_ms"),
            ("source", "the source program", "source_ms"),
        )
    ]
    rows = [
        (
            Cell(method, kind="name"),
            _time(each["load_ms"]),
            tables.figure(each["first_ms"], figures.milliseconds(each["first_ms"])),
            _time(each["steady_ms"]),
            _time(each["source_ms"]),
            tables.figure(each["ratio"], f"{each['ratio']:.2f} ×"),
        )
        for method, each in known
    ]
    head = ("method", "load", "first call", "further calls", "source program", "ratio")
    return {
        "latency": chart(
            "Further calls.",
            "Median and quartiles of the package and of its source in eager mode, on one thread of "
            "the machine that validated; a device is another matter.",
            [("package", "var(--c0)"), ("source program", "var(--soft)")],
            "Latency of the package and of its source program",
            partial(spreads.latency, points),
        ),
        "times": tables.table("times", "Medians, with quartiles", head, rows, range(1, 6)),
    }


def _spread(spread: Json) -> str:
    low, high = (figures.milliseconds(spread[name]) for name in ("low", "high"))
    return f"{figures.milliseconds(spread['median'])} ({low} to {high}, {spread['runs']} runs)"


def _time(spread: Json) -> Cell:
    note = f"{spread['low']:.3g}–{spread['high']:.3g}"
    return Cell(figures.milliseconds(spread["median"]), spread["median"], note=note)
