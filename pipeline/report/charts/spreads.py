"""The specifications of charts of spreads: errors, and times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.report.charts.canvas import (
    INK,
    LABEL,
    ROW,
    SOFT,
    axis_from_zero,
    canvas,
    labels,
    pixels,
)

Json = Mapping[str, Any]
Spec = dict[str, Any]

_LANE = 9  # pixels between lines of one row


def errors(rows: Sequence[Json], limits: Mapping[str, float], width: int) -> Spec | None:
    """The errors of each output on each input set, on a logarithmic axis: from the mean over the
    99.9th percentile to the greatest. None where every output is exact.

    Args:
        rows: `row` (its method and output), `mean`, `p999`, `max`, `ok`, `told`.
        limits: of the absolute error, by row.
    """
    groups: dict[str, list[Json]] = {}
    for row in rows:
        if 0 < row["max"] < math.inf:
            groups.setdefault(row["row"], []).append(row)
    if not groups:
        return None
    known = [row[n] for own in groups.values() for row in own for n in ("mean", "p999", "max")]
    known += [limit for name, limit in limits.items() if name in groups]
    low = math.floor(math.log10(min(value for value in known if value > 0)))
    high = math.ceil(math.log10(max(known) * 1.0001))
    values: list[Json] = []
    names: dict[float, str] = {}
    marks: list[Json] = []
    top = 0.0
    for name, own in groups.items():
        names[top + 14] = name
        bottom = top + LABEL + _LANE * len(own)
        if limits.get(name, 0) > 0:
            told = f"{name}: limit of the absolute error, {limits[name]:g} + rtol × |expected|"
            marks.append({"x": limits[name], "y": top + LABEL - 4, "y2": bottom, "told": told})
        for lane, row in enumerate(own):
            y = top + LABEL + _LANE * (lane + 0.5)
            ends = {key: max(row[key], 10.0**low) for key in ("mean", "p999")}
            values.append({**row, **ends, "y": y, "above": y - 3.5, "below": y + 3.5})
        top = bottom + 12
    step = max(1, math.ceil((high - low) / (width / 70)))
    axis = {"title": None, "format": "~e", "values": [10.0**p for p in range(low, high + 1, step)]}
    scale = {"type": "log", "domain": [10.0**low, 10.0**high], "nice": False}
    x: Spec = {"field": "max", "type": "quantitative", "scale": scale, "axis": axis}
    colour = {"condition": {"test": "datum.ok", "value": "var(--c0)"}, "value": "var(--bad)"}
    at: Spec = pixels(top)
    told_by: Spec = {"description": {"field": "told"}}
    limit = {
        "data": {"values": marks},
        "mark": {"type": "rule", "strokeWidth": 1.5, "color": INK, "strokeDash": [4, 3]},
        "encoding": {"x": {**x, "field": "x"}, "y": at, "y2": {"field": "y2"}, **told_by},
    }
    line = {
        "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.5},
        "encoding": {
            "x": {**x, "field": "mean"},
            "x2": {"field": "max"},
            "y": at,
            "color": colour,
            **told_by,
        },
    }
    percentile = {
        "mark": {"type": "rule", "strokeWidth": 1.5},
        "encoding": {
            "x": {**x, "field": "p999"},
            "y": pixels(top, "above"),
            "y2": {"field": "below"},
            "color": colour,
            **told_by,
        },
    }
    greatest = {
        "mark": {"type": "point", "filled": True, "size": 30, "opacity": 1},
        "encoding": {"x": x, "y": at, "color": colour, **told_by},
    }
    layers = [{**each, "data": {"values": values}} for each in (line, percentile, greatest)]
    return canvas(width, top, names, [*([limit] if marks else []), *layers])


def latency(rows: Sequence[Json], width: int) -> Spec:
    """Quartiles and medians in milliseconds, of the package and of the source program: `row`,
    `low`, `median`, `high`, `what` ("package" or "source"), `told`."""
    order = list(dict.fromkeys(row["row"] for row in rows))
    height = ROW * len(order)
    values = [
        {**r, "y": order.index(r["row"]) * ROW + LABEL + (4 if r["what"] == "package" else 13)}
        for r in rows
    ]
    colour = {
        "condition": {"test": "datum.what == 'package'", "value": "var(--c0)"},
        "value": SOFT,
    }
    most = max(row["high"] for row in rows)
    axis = axis_from_zero(most * 1.04, width, "ms")
    scale = {"domain": [0, most * 1.04], "nice": False}
    x: Spec = {"field": "median", "type": "quantitative", "scale": scale, "axis": axis}
    common = {"y": pixels(height), "color": colour, "description": {"field": "told"}}
    ends = {"x": {**x, "field": "low"}, "x2": {"field": "high"}}
    data = {"values": values}
    layers: list[Spec] = [
        {
            "data": data,
            "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.5},
            "encoding": {**common, **ends},
        },
        {
            "data": data,
            "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
            "encoding": {**common, "x": x},
        },
    ]
    return canvas(width, height, labels(order), layers)
