"""Parts of Vega-Lite specifications: layers of marks, placed by pixels, with labels above them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.report.elements import Json

Spec = dict[str, Any]

INK, SOFT, FIRST, BAD, PAPER = (f"var(--{name})" for name in ("ink", "soft", "c0", "bad", "paper"))
LABEL, BAR = 20, 18  # pixels: what stands above a bar, and a bar
ROW = LABEL + BAR + 8


def canvas(width: int, height: float, labels: Mapping[float, str], layers: Sequence[Spec]) -> Spec:
    """Return layers over each other, below their labels.

    Labels stand at the left, above what they name, which leaves a phone the whole width.

    Args:
        labels: by the pixel, from the top, on which they stand.
    """
    values = [{"y": y, "label": label} for y, label in labels.items()]
    mark = {"type": "text", "align": "left", "aria": False, "limit": width, "color": INK}
    names = layer(mark, values, height, x={"value": 0}, text="label")
    return {"width": width, "height": height, "layer": [*layers, names]}


def layer(
    mark: Mapping[str, Any], values: Sequence[Json], height: float, y: str = "y", **encoding: Any
) -> Spec:
    """Return a layer of marks, one for each value.

    Args:
        height: of the chart in pixels.
        y: the field with the pixel of a mark, from the top.
        encoding: further channels; those given by a name take the field as it is.
    """
    scale = {"domain": [0, height], "range": [0, height], "nice": False, "zero": False}
    place = {"field": y, "type": "quantitative", "scale": scale, "axis": None}
    channels = {
        name: channel if isinstance(channel, dict) else _as_it_is(name, channel)
        for name, channel in encoding.items()
    }
    return {"data": {"values": values}, "mark": mark, "encoding": {"y": place, **channels}}


def _as_it_is(channel: str, field: str) -> Spec:
    if channel not in ("color", "stroke", "strokeWidth"):
        return {"field": field}
    return {"field": field, "type": "nominal", "scale": None, "legend": None}


def scale_x(field: str, last: float, axis: Json | None) -> Spec:
    """Return the channel of a field on a linear scale from zero."""
    scale = {"domain": [0, last], "nice": False}
    return {"field": field, "type": "quantitative", "scale": scale, "axis": axis}


def labels(rows: Sequence[str], height: float = ROW) -> dict[float, str]:
    return {index * height + LABEL - 6: row for index, row in enumerate(rows)}


def unit_axis(unit: str, last: float, width: int) -> Spec:
    """Return an axis to `last` with round figures.

    None is so near its end that its label, in whatever font, would leave the picture.
    """
    label = f"datum.value > {last * (1 - 28 / width)} ? '' : datum.label + ' {unit}'"
    return {"title": None, "tickCount": round(width / 90), "labelExpr": label}
