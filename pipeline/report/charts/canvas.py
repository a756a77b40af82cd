"""What charts have in common: rows with labels above them, placed by pixels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]
Spec = dict[str, Any]

INK, SOFT = "var(--ink)", "var(--soft)"
LABEL, BAR = 20, 18  # pixels: what stands above a bar, and a bar
ROW = LABEL + BAR + 8


def canvas(width: int, height: float, labels: Mapping[float, str], layers: Sequence[Spec]) -> Spec:
    """Layers over each other, whose `y` are pixels from the top.

    Labels stand above what they name, at the left, which leaves a phone the whole width. They are
    given by the pixel on which they stand.
    """
    told = [{"y": y, "label": label} for y, label in labels.items()]
    text = {"type": "text", "align": "left", "aria": False, "limit": width, "color": INK}
    names = {
        "data": {"values": told},
        "mark": text,
        "encoding": {"x": {"value": 0}, "y": pixels(height), "text": {"field": "label"}},
    }
    return {"width": width, "height": height, "layer": [*layers, names]}


def pixels(height: float, field: str = "y") -> Spec:
    scale = {"domain": [0, height], "range": [0, height], "nice": False, "zero": False}
    return {"field": field, "type": "quantitative", "scale": scale, "axis": None}


def bars(values: Sequence[Json], rows: Sequence[str], width: int, axis: Json | None) -> Spec:
    """Pieces of rows from `x` to `x2`, each with its colour and what it `told`; a row is named by
    its `row`, a number."""
    height = ROW * len(rows)
    placed = [
        {**value, "y": value["row"] * ROW + LABEL, "y2": value["row"] * ROW + LABEL + BAR}
        for value in values
    ]
    scale = {"domain": [0, 1], "nice": False}
    bars = {
        "data": {"values": placed},
        "mark": {"type": "rect", "stroke": "var(--paper)", "strokeWidth": 0.8},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "scale": scale, "axis": axis},
            "x2": {"field": "x2"},
            "y": pixels(height),
            "y2": {"field": "y2"},
            "color": {"field": "colour", "type": "nominal", "scale": None, "legend": None},
            "description": {"field": "told"},
        },
    }
    return canvas(width, height, labels(rows), [bars])


def labels(rows: Sequence[str]) -> dict[float, str]:
    return {index * ROW + LABEL - 6: row for index, row in enumerate(rows)}


def axis_from_zero(last: float, width: int, unit: str) -> Spec:
    """Round figures on an axis from zero to `last`, none so near its end that its label, in
    whatever font, would leave the picture."""
    last = max(last, 1e-6)
    room = last * (1 - 28 / width)
    step = 10.0 ** math.floor(math.log10(last))
    while last / step < width / 140:
        step /= 2 if round(step / 10.0 ** math.floor(math.log10(step))) != 5 else 2.5
    values = [round(step * n, 12) for n in range(int(room / step) + 1)]
    return {"title": None, "values": values, "labelExpr": f"datum.label + ' {unit}'"}
