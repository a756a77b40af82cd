"""The specifications of charts, in Vega-Lite and Vega, from parts of records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.report import formatting as figures
from pipeline.report.charts.canvas import LABEL, axis_from_zero, bars, canvas, pixels
from pipeline.report.charts.colours import LEFT, of_action, of_backends, of_kind

Json = Mapping[str, Any]
Spec = dict[str, Any]


def delegation(methods: Mapping[str, Json], width: int) -> Spec:
    """For each method a bar of its nodes: what each backend runs, and what is left."""
    values: list[Json] = []
    rows: list[str] = []
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
    return bars(values, rows, width, axis)


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
    return bars(values, list(methods), width, None)


def _ranked(operators: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(operators.items(), key=lambda pair: (-pair[1], pair[0]))


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

    def text(y: Json, told: str) -> Spec:
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
            text({"field": "y0", "offset": 16}, name),
            text({"signal": below}, amount),
        ],
    }


def timeline(actions: Sequence[Json], lanes: Sequence[str], width: int) -> Spec:
    """Workers as lanes: `lane` (a number), `start` and `end` in seconds from the run's begin,
    `kind`, `name`, `ok`, `told`. Names stand where they fit."""
    last = max((action["end"] for action in actions), default=1.0) or 1.0
    row, bar = LABEL + 34, 24
    height = row * len(lanes)
    values = [
        {
            **action,
            "y": action["lane"] * row + LABEL,
            "y2": action["lane"] * row + LABEL + bar,
            "middle": action["lane"] * row + LABEL + bar / 2,
            "colour": of_action(action["kind"]),
            # About 6.2 pixels a letter.
            "text": action["name"]
            if (action["end"] - action["start"]) / last * width > 6.2 * len(action["name"]) + 12
            else "",
        }
        for action in actions
    ]
    axis = axis_from_zero(last, width, "s")
    scale = {"domain": [0, last], "nice": False}
    x: Spec = {
        "field": "start",
        "type": "quantitative",
        "scale": scale,
        "axis": axis,
    }
    edge = {"condition": {"test": "!datum.ok", "value": "var(--bad)"}, "value": "var(--paper)"}
    thick = {"condition": {"test": "!datum.ok", "value": 2.5}, "value": 0.8}
    data = {"values": values}
    boxes = {
        "data": data,
        "mark": {"type": "rect"},
        "encoding": {
            "x": x,
            "x2": {"field": "end"},
            "y": pixels(height),
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
        "encoding": {"x": x, "y": pixels(height, "middle"), "text": {"field": "text"}},
    }
    labels = {index * row + LABEL - 6.0: lane for index, lane in enumerate(lanes)}
    return canvas(
        width, height, labels, [boxes, *([names] if any(v["text"] for v in values) else [])]
    )
