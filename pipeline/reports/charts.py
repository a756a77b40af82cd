"""The specifications of charts, in Vega-Lite and Vega, from parts of records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.reports import figures
from pipeline.reports.colours import LEFT, of_action, of_backends, of_kind

Json = Mapping[str, Any]
Spec = dict[str, Any]

_INK, _SOFT = "var(--ink)", "var(--soft)"
_LABEL, _BAR = 20, 18  # pixels: what stands above a bar, and a bar
_ROW = _LABEL + _BAR + 8
_LANE = 9  # pixels between lines of one row


def _canvas(
    width: int, height: float, labels: Mapping[float, str], layers: Sequence[Spec]
) -> Spec:
    """Layers over each other, whose `y` are pixels from the top.

    Labels stand above what they name, at the left, which leaves a phone the whole width. They are
    given by the pixel on which they stand.
    """
    told = [{"y": y, "label": label} for y, label in labels.items()]
    text = {"type": "text", "align": "left", "aria": False, "limit": width, "color": _INK}
    names = {
        "data": {"values": told},
        "mark": text,
        "encoding": {"x": {"value": 0}, "y": _y(height), "text": {"field": "label"}},
    }
    return {"width": width, "height": height, "layer": [*layers, names]}


def _y(height: float, field: str = "y") -> Spec:
    scale = {"domain": [0, height], "range": [0, height], "nice": False, "zero": False}
    return {"field": field, "type": "quantitative", "scale": scale, "axis": None}


def _bars(values: Sequence[Json], rows: Sequence[str], width: int, axis: Json | None) -> Spec:
    """Pieces of rows from `x` to `x2`, each with its colour and what it `told`; a row is named by
    its `row`, a number."""
    height = _ROW * len(rows)
    placed = [
        {**value, "y": value["row"] * _ROW + _LABEL, "y2": value["row"] * _ROW + _LABEL + _BAR}
        for value in values
    ]
    scale = {"domain": [0, 1], "nice": False}
    bars = {
        "data": {"values": placed},
        "mark": {"type": "rect", "stroke": "var(--paper)", "strokeWidth": 0.8},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "scale": scale, "axis": axis},
            "x2": {"field": "x2"},
            "y": _y(height),
            "y2": {"field": "y2"},
            "color": {"field": "colour", "type": "nominal", "scale": None, "legend": None},
            "description": {"field": "told"},
        },
    }
    return _canvas(width, height, _labels(rows), [bars])


def _labels(rows: Sequence[str]) -> dict[float, str]:
    return {index * _ROW + _LABEL - 6: row for index, row in enumerate(rows)}


def delegation(methods: Mapping[str, Json], width: int) -> Spec:
    """For each method a bar of its nodes: what each backend runs, and what is left."""
    values, rows = [], []
    for method, counts in methods.items():
        nodes = counts["nodes"]
        share = figures.delegated(counts)
        row = len(rows)
        rows.append(f"{method}  {figures.percent(share) if share is not None else 'no operators'}")
        start = 0.0
        for name, colour, amount in delegation_parts(counts):
            end = start + amount / nodes
            told = f"{method}: {name}: {amount} of {nodes} nodes ({amount / nodes:.1%})"
            values.append({"row": row, "x": start, "x2": end, "colour": colour, "told": told})
            start = end
    axis = {"title": None, "format": ".0%", "tickCount": 4}
    return _bars(values, rows, width, axis)


def delegation_parts(counts: Json) -> Iterator[tuple[str, str, int]]:
    """What runs a method's nodes: its name, its colour, how many."""
    backends = {name: each["nodes"] for name, each in counts.get("backends", {}).items()}
    if not backends and counts["delegated_nodes"]:
        names = sorted(counts["partitions"])
        backends = {" + ".join(names): counts["delegated_nodes"]}
        colours = dict.fromkeys(backends, of_backends(names)[names[0]] if names else LEFT)
    else:
        colours = of_backends(backends)
    for name, nodes in sorted(backends.items()):
        yield name, colours[name], nodes
    for backend, own in sorted(counts.get("kernels", {}).items()):
        yield f"{backend} kernels", of_backends([backend])[backend], sum(own.values())
    left = counts["nodes"] - counts["delegated_nodes"] - figures.own_kernels(counts)
    if left:
        yield "left to portable kernels", LEFT, left


def stretches(methods: Mapping[str, Sequence[Json]], width: int) -> Spec:
    """Each method from its first operator to its last: what runs in which delegate, and what lies
    between. As long as its nodes are many."""
    values = []
    for row, (method, parts) in enumerate(methods.items()):
        total = sum(part["nodes"] for part in parts) or 1
        colours = of_backends(part["backend"] for part in parts if part["backend"])
        start = 0
        for index, part in enumerate(parts):
            end = start + part["nodes"]
            what = ", ".join(
                f"{name} ×{calls}" if calls > 1 else name
                for name, calls in _ranked(part["operators"])[:6]
            )
            more = len(part["operators"]) - 6
            what += f" and {more} more" if more > 0 else ""
            where = part["backend"] or "left"
            values.append(
                {
                    "row": row,
                    "x": start / total,
                    "x2": end / total,
                    "colour": colours.get(part["backend"], LEFT),
                    "told": f"{method}, nodes {start + 1}–{end}, {where}: {what} [{index}]",
                }
            )
            start = end
    return _bars(values, list(methods), width, None)


def _ranked(operators: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(operators.items(), key=lambda pair: (-pair[1], pair[0]))


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
    values, labels, marks = [], {}, []
    top = 0.0
    for name, own in groups.items():
        labels[top + 14] = name
        bottom = top + _LABEL + _LANE * len(own)
        if limits.get(name, 0) > 0:
            told = f"{name}: limit of the absolute error, {limits[name]:g} + rtol × |expected|"
            marks.append({"x": limits[name], "y": top + _LABEL - 4, "y2": bottom, "told": told})
        for lane, row in enumerate(own):
            y = top + _LABEL + _LANE * (lane + 0.5)
            ends = {key: max(row[key], 10.0**low) for key in ("mean", "p999")}
            values.append({**row, **ends, "y": y, "above": y - 3.5, "below": y + 3.5})
        top = bottom + 12
    step = max(1, math.ceil((high - low) / (width / 70)))
    axis = {"title": None, "format": "~e", "values": [10.0**p for p in range(low, high + 1, step)]}
    scale = {"type": "log", "domain": [10.0**low, 10.0**high], "nice": False}
    x: Spec = {"field": "max", "type": "quantitative", "scale": scale, "axis": axis}
    colour = {"condition": {"test": "datum.ok", "value": "var(--c0)"}, "value": "var(--bad)"}
    y, told = _y(top), {"description": {"field": "told"}}
    limit = {
        "data": {"values": marks},
        "mark": {"type": "rule", "strokeWidth": 1.5, "color": _INK, "strokeDash": [4, 3]},
        "encoding": {"x": {**x, "field": "x"}, "y": y, "y2": {"field": "y2"}, **told},
    }
    line = {
        "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.5},
        "encoding": {
            "x": {**x, "field": "mean"},
            "x2": {"field": "max"},
            "y": y,
            "color": colour,
            **told,
        },
    }
    percentile = {
        "mark": {"type": "rule", "strokeWidth": 1.5},
        "encoding": {
            "x": {**x, "field": "p999"},
            "y": _y(top, "above"),
            "y2": {"field": "below"},
            "color": colour,
            **told,
        },
    }
    greatest = {
        "mark": {"type": "point", "filled": True, "size": 30, "opacity": 1},
        "encoding": {"x": x, "y": y, "color": colour, **told},
    }
    layers = [{**each, "data": {"values": values}} for each in (line, percentile, greatest)]
    return _canvas(width, top, labels, [*([limit] if marks else []), *layers])


def treemap(segments: Iterable[Json], width: int, height: int) -> Spec:
    """The bytes of a package as areas: `name`, `size`, `kind`, `told`, and the `group` in which a
    segment lies."""
    groups: dict[str, list[Json]] = {}
    for segment in segments:
        if segment["size"] > 0:
            groups.setdefault(segment["group"], []).append(segment)
    nodes: list[Json] = [{"id": "all", "parent": None}]
    for group, own in groups.items():
        nodes.append({"id": group, "parent": "all"})
        nodes += [
            {
                "id": f"{group}/{index}",
                "parent": group,
                "size": segment["size"],
                "name": segment["name"],
                "short": ".".join(segment["name"].split(".")[-2:]),
                "amount": figures.size(segment["size"]),
                "colour": of_kind(segment["kind"]),
                "told": segment["told"],
            }
            for index, segment in enumerate(own)
        ]
    box = {
        "x": {"field": "x0"},
        "x2": {"field": "x1"},
        "y": {"field": "y0"},
        "y2": {"field": "y1"},
    }
    wide, tall = "(datum.x1 - datum.x0)", "(datum.y1 - datum.y0)"
    # About 6.4 pixels a letter: a name in full, or else the end of it, which tells most.
    full, short = (f"{wide} > 6.4 * length(datum.{n}) + 12" for n in ("name", "short"))
    named = f"{full} ? datum.name : {short} || {wide} > 100 ? datum.short : ''"
    name = f"{tall} > 20 ? ({named}) : ''"
    below = f"datum.y0 + (({named}) ? 31 : 16)"
    amount = f"{tall} > 36 && {wide} > 62 ? datum.amount : ''"

    def text(y: Json, told: str, opacity: float) -> Spec:
        return {
            "type": "text",
            "from": {"data": "leaves"},
            "interactive": False,
            "aria": False,
            "encode": {
                "enter": {
                    "x": {"field": "x0", "offset": 6},
                    "y": y,
                    "text": {"signal": told},
                    "limit": {"signal": f"{wide} - 12"},
                    "fill": {"value": "var(--on-colour)"},
                    "fillOpacity": {"value": opacity},
                    "fontSize": {"value": 12},
                }
            },
        }

    return {
        "width": width,
        "height": height,
        "data": [
            {
                "name": "nodes",
                "values": nodes,
                "transform": [
                    {"type": "stratify", "key": "id", "parentKey": "parent"},
                    {
                        "type": "treemap",
                        "field": "size",
                        "size": [{"signal": "width"}, {"signal": "height"}],
                        "sort": {"field": "value", "order": "descending"},
                        "paddingInner": 1,
                        "round": False,
                        "method": "squarify",
                        "ratio": 1.4,
                    },
                ],
            },
            {
                "name": "leaves",
                "source": "nodes",
                "transform": [{"type": "filter", "expr": "datum.size"}],
            },
        ],
        "marks": [
            {
                "type": "rect",
                "from": {"data": "leaves"},
                "encode": {
                    "enter": {
                        **box,
                        "fill": {"field": "colour"},
                        "description": {"field": "told"},
                    }
                },
            },
            text({"field": "y0", "offset": 16}, name, 1),
            text({"signal": below}, amount, 0.85),
        ],
    }


def latency(rows: Sequence[Json], width: int) -> Spec:
    """Quartiles and medians in milliseconds, of the package and of the source program: `row`,
    `low`, `median`, `high`, `what` ("package" or "source"), `told`."""
    order = list(dict.fromkeys(row["row"] for row in rows))
    height = _ROW * len(order)
    values = [
        {**r, "y": order.index(r["row"]) * _ROW + _LABEL + (4 if r["what"] == "package" else 13)}
        for r in rows
    ]
    colour = {
        "condition": {"test": "datum.what == 'package'", "value": "var(--c0)"},
        "value": _SOFT,
    }
    most = max(row["high"] for row in rows)
    axis = {"title": None, "tickCount": 4, "labelExpr": "datum.label + ' ms'", "labelBound": True}
    scale = {"domain": [0, most * 1.04], "nice": False}
    x: Spec = {"field": "median", "type": "quantitative", "scale": scale, "axis": axis}
    common = {"y": _y(height), "color": colour, "description": {"field": "told"}}
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
    return _canvas(width, height, _labels(order), layers)


def timeline(actions: Sequence[Json], lanes: Sequence[str], width: int) -> Spec:
    """Workers as lanes: `lane` (a number), `start` and `end` in seconds from the run's begin,
    `kind`, `name`, `ok`, `told`. Names stand where they fit."""
    last = max((action["end"] for action in actions), default=1.0) or 1.0
    row, bar = _LABEL + 34, 24
    height = row * len(lanes)
    values = [
        {
            **action,
            "y": action["lane"] * row + _LABEL,
            "y2": action["lane"] * row + _LABEL + bar,
            "middle": action["lane"] * row + _LABEL + bar / 2,
            "colour": of_action(action["kind"]),
            # About 6.2 pixels a letter.
            "text": action["name"]
            if (action["end"] - action["start"]) / last * width > 6.2 * len(action["name"]) + 12
            else "",
        }
        for action in actions
    ]
    axis = {"title": None, "tickCount": max(3, width // 120), "labelExpr": "datum.label + ' s'"}
    scale = {"domain": [0, last], "nice": False}
    x: Spec = {
        "field": "start",
        "type": "quantitative",
        "scale": scale,
        "axis": {**axis, "labelBound": True},
    }
    edge = {"condition": {"test": "!datum.ok", "value": "var(--bad)"}, "value": "var(--paper)"}
    thick = {"condition": {"test": "!datum.ok", "value": 2.5}, "value": 0.8}
    data = {"values": values}
    bars = {
        "data": data,
        "mark": {"type": "rect"},
        "encoding": {
            "x": x,
            "x2": {"field": "end"},
            "y": _y(height),
            "y2": {"field": "y2"},
            "color": {"field": "colour", "type": "nominal", "scale": None, "legend": None},
            "stroke": edge,
            "strokeWidth": thick,
            "description": {"field": "told"},
        },
    }
    names = {
        "data": {"values": [value for value in values if value["text"]]},
        "mark": {
            "type": "text",
            "align": "left",
            "baseline": "middle",
            "dx": 6,
            "fontSize": 11,
            "color": "var(--on-colour)",
            "aria": False,
        },
        "encoding": {"x": x, "y": _y(height, "middle"), "text": {"field": "text"}},
    }
    labels = {index * row + _LABEL - 6.0: lane for index, lane in enumerate(lanes)}
    return _canvas(width, height, labels, [bars, *([names] if any(v["text"] for v in values) else [])])
