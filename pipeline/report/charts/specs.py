"""Specifications of charts, in Vega-Lite and Vega, from parts of records.

What a mark says (`description`) becomes its tooltip.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.report.charts.canvas import (
    BAD,
    BAR,
    FIRST,
    INK,
    LABEL,
    PAPER,
    ROW,
    SOFT,
    canvas,
    labels,
    layer,
    scale_x,
    unit_axis,
)
from pipeline.report.charts.colours import action_colour, segment_colour
from pipeline.report.elements import Json
from pipeline.report.formatting import size

Spec = dict[str, Any]

_LANE = 9  # pixels between lines of one row
_TREEMAP = Path(__file__).with_name("treemap.vg.json")


def bars(
    rows: Mapping[str, Sequence[tuple[int, str, str]]], width: int, axis: Json | None = None
) -> Spec:
    """Return bars over the whole width.

    Args:
        rows: by their labels the pieces of each bar: amount, colour and description.
    """
    height = ROW * len(rows)
    values = []
    for index, pieces in enumerate(rows.values()):
        total = sum(amount for amount, _, _ in pieces) or 1
        start, top = 0, index * ROW + LABEL
        for amount, colour, description in pieces:
            piece = {"x": start / total, "x2": (start + amount) / total, "y": top, "y2": top + BAR}
            values.append({**piece, "colour": colour, "description": description})
            start += amount
    mark = {"type": "rect", "stroke": PAPER, "strokeWidth": 0.8}
    channels = {"x2": "x2", "y2": "y2", "color": "colour", "description": "description"}
    layers = [layer(mark, values, height, x=scale_x("x", 1, axis), **channels)]
    return canvas(width, height, labels(list(rows)), layers)


def treemap(segments: Sequence[Json], width: int) -> Spec:
    """Return the bytes of a package as areas, by kind of segment.

    Args:
        segments: with `name`, `size`, `kind` and `description`.
    """
    nodes: list[Json] = [{"id": "all", "parent": None}]
    nodes += [{"id": kind, "parent": "all"} for kind in dict.fromkeys(s["kind"] for s in segments)]
    nodes += [
        {
            "id": f"{segment['kind']}/{index}",
            "parent": segment["kind"],
            "size": segment["size"],
            "name": segment["name"],
            "short": ".".join(segment["name"].split(".")[-2:]),
            "amount": size(segment["size"]),
            "colour": segment_colour(segment["kind"]),
            "description": segment["description"],
        }
        for index, segment in enumerate(segments)
        if segment["size"] > 0
    ]
    spec = json.loads(_TREEMAP.read_text(encoding="utf-8"))
    spec["data"][0]["values"] = nodes
    return {**spec, "width": width, "height": 380 if width > 500 else 420}


def timeline(actions: Sequence[Json], lanes: Sequence[str], width: int) -> Spec:
    """Return workers as lanes of actions, which are named where their names fit.

    Args:
        actions: with `lane` (a number), `start` and `end` in seconds from the run's begin, `kind`,
            `name`, `ok` and `description`.
    """
    last = max((action["end"] for action in actions), default=1.0) or 1.0
    row, bar = LABEL + 34, 24
    height = row * len(lanes)
    values = []
    for action in actions:
        top = action["lane"] * row + LABEL
        edge, thickness = (PAPER, 0.8) if action["ok"] else (BAD, 2.5)
        room = (action["end"] - action["start"]) / last * width
        fits = room > 6.2 * len(action["name"]) + 12  # about 6.2 pixels a letter
        values.append(
            {
                **action,
                "y": top,
                "y2": top + bar,
                "middle": top + bar / 2,
                "colour": action_colour(action["kind"]),
                "edge": edge,
                "thickness": thickness,
                "text": action["name"] if fits else "",
            }
        )
    x = scale_x("start", last, unit_axis("s", last, width))
    style = {"color": "colour", "stroke": "edge", "strokeWidth": "thickness"}
    ends = {"x2": "end", "y2": "y2", "description": "description"}
    layers = [layer({"type": "rect"}, values, height, x=x, **ends, **style)]
    text = {"type": "text", "align": "left", "baseline": "middle", "dx": 6, "fontSize": 11}
    if named := [value for value in values if value["text"]]:
        mark = {**text, "color": "var(--on-colour)", "aria": False}
        layers.append(layer(mark, named, height, "middle", x=x, text="text"))
    return canvas(width, height, labels(lanes, row), layers)


def errors(lines: Sequence[Json], limits: Mapping[str, float], width: int) -> Spec:
    """Return the errors of each output on each input set, on a logarithmic axis.

    A line leads from the mean over the 99.9th percentile to the greatest error.

    Args:
        lines: with `row` (method and output), `mean`, `p999`, `max` (positive and finite), `ok` and
            `description`.
        limits: of the absolute error, by row.
    """
    rows = {row: [line for line in lines if line["row"] == row] for row in _rows(lines)}
    known = [line[name] for line in lines for name in ("mean", "p999", "max")]
    known += [limit for row, limit in limits.items() if row in rows]
    low = math.floor(math.log10(min(value for value in known if value > 0)))
    high = math.ceil(math.log10(max(known) * 1.0001))
    values: list[Json] = []
    marks: list[Json] = []
    names: dict[float, str] = {}
    top = 0.0
    for row, own in rows.items():
        names[top + 14] = row
        bottom = top + LABEL + _LANE * len(own)
        if (limit := limits.get(row, 0)) > 0:
            words = f"{row}: limit of the absolute error, {limit:g} + rtol × |expected|"
            place = {"x": limit, "y": top + LABEL - 4, "y2": bottom}
            marks.append({**place, "description": words})
        for lane, line in enumerate(own):
            y = top + LABEL + _LANE * (lane + 0.5)
            ends = {key: max(line[key], 10.0**low) for key in ("mean", "p999")}
            ends |= {"y": y, "above": y - 3.5, "below": y + 3.5}
            values.append({**line, **ends, "colour": FIRST if line["ok"] else BAD})
        top = bottom + 12
    step = max(1, math.ceil((high - low) / (width / 70)))
    axis = {"title": None, "format": "~e", "values": [10.0**p for p in range(low, high + 1, step)]}
    scale = {"type": "log", "domain": [10.0**low, 10.0**high], "nice": False}
    x: Spec = {"type": "quantitative", "scale": scale, "axis": axis}
    return canvas(width, top, names, _error_layers(values, marks, x, top))


def _rows(values: Sequence[Json]) -> list[str]:
    return list(dict.fromkeys(value["row"] for value in values))


def _error_layers(
    values: Sequence[Json], marks: Sequence[Json], x: Spec, height: float
) -> list[Spec]:
    limit = {"type": "rule", "strokeWidth": 1.5, "color": INK, "strokeDash": [4, 3]}
    line = {"type": "rule", "strokeWidth": 2, "opacity": 0.5}
    tick = {"type": "rule", "strokeWidth": 1.5}
    dot = {"type": "point", "filled": True, "size": 30, "opacity": 1}
    says = {"description": "description"}
    style = {"color": "colour", **says}
    at = {name: {**x, "field": name} for name in ("x", "mean", "p999", "max")}
    layers = [layer(limit, marks, height, x=at["x"], y2="y2", **says)] if marks else []
    return [
        *layers,
        layer(line, values, height, x=at["mean"], x2="max", **style),
        layer(tick, values, height, "above", x=at["p999"], y2="below", **style),
        layer(dot, values, height, x=at["max"], **style),
    ]


def latency(spreads: Sequence[Json], width: int) -> Spec:
    """Return quartiles and medians in milliseconds, of the package and of its source.

    Args:
        spreads: with `row`, `low`, `median`, `high`, `source` (whether it is the source program's)
            and `description`.
    """
    rows = _rows(spreads)
    height = ROW * len(rows)
    values = [
        {
            **spread,
            "y": rows.index(spread["row"]) * ROW + LABEL + (BAR - 5 if spread["source"] else 4),
            "colour": SOFT if spread["source"] else FIRST,
        }
        for spread in spreads
    ]
    last = max(spread["high"] for spread in spreads) * 1.04
    axis = unit_axis("ms", last, width)
    style = {"color": "colour", "description": "description"}
    line = {"type": "rule", "strokeWidth": 3, "opacity": 0.5}
    dot = {"type": "point", "filled": True, "size": 45, "opacity": 1}
    layers = [
        layer(line, values, height, x=scale_x("low", last, axis), x2="high", **style),
        layer(dot, values, height, x=scale_x("median", last, axis), **style),
    ]
    return canvas(width, height, labels(rows), layers)
