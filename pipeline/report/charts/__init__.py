"""Charts: specifications in Vega-Lite and Vega from parts of records, drawn while a page is made.

A chart becomes SVG in the page, which so has no script, needs no network, and is small. It is drawn
once, as wide as a phone; the page's style makes it larger on larger screens, and its colours are
variables of that style, so that a chart follows dark mode. The marks and their channels stand
in `charts.vl.json` and `treemap.vg.json`; values are made here: `y` in pixels from the top, and the
`description` of a mark, which becomes its tooltip and its name for screen readers.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from markupsafe import Markup

from pipeline.report.elements import Chart, Json
from pipeline.store.sizes import human_size
from pipeline.store.visible import visible

Spec = dict[str, Any]

_WIDTH = 400  # pixels
_DECADES = 2  # between the least and the greatest of an axis, from which on it is logarithmic
_NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'  # which SVG in a page goes without
_DROPPED = ("aria-roledescription", "font-family", "pointer-events", "class", "version")
_LABEL, _BAR = 20, 18  # pixels: what stands above a bar, and a bar
_ROW = _LABEL + _BAR + 8
_LANE = 9  # pixels between lines of one row
_FOLDER = Path(__file__).parent

# Colours are variables of the style, the same on every page.
LEFT = "var(--left)"
_CATEGORIES = 8
# Backends of the catalogue have colours of their own; others share the rest.
_BACKENDS = (
    "XnnpackBackend",
    "VulkanBackend",
    "CoreMLBackend",
    "EthosUBackend",
    "OpenvinoBackend",
    "VgfBackend",
)
_SEGMENTS = ("delegate", "named_data", "constants", "mutable", "program")
_ACTIONS = ("export", "quantize", "compile", "link", "validate")


def backend_colours(backends: Iterable[str]) -> dict[str, str]:
    backends = set(backends)
    remaining = sorted(backends.difference(_BACKENDS))
    remainder = _CATEGORIES - len(_BACKENDS)
    places = {backend: index for index, backend in enumerate(_BACKENDS)}
    places |= {
        backend: len(_BACKENDS) + index % remainder for index, backend in enumerate(remaining)
    }
    return {backend: f"var(--c{places[backend]})" for backend in backends}


def colour_of(kind: str) -> str:
    """Return the colour of a kind of segment or of action."""
    places = {name: index for kinds in (_SEGMENTS, _ACTIONS) for index, name in enumerate(kinds)}
    return f"var(--c{places[kind]})" if kind in places else LEFT


def bars(
    rows: Mapping[str, Sequence[tuple[int, str, str]]], axis: Json | None = None, whole: int = 0
) -> Spec:
    """Return bars of pieces.

    Args:
        rows: by their labels the pieces of each bar: amount, colour and description.
        whole: the amount that takes the whole width; by default that of each bar.
    """
    values = []
    for index, pieces in enumerate(rows.values()):
        total = whole or sum(amount for amount, _, _ in pieces) or 1
        place = {"y": index * _ROW + _LABEL, "y2": index * _ROW + _LABEL + _BAR}
        start = 0
        for amount, colour, description in pieces:
            ends = {"start": start / total, "end": (start + amount) / total}
            values.append({**place, **ends, "colour": colour, "description": description})
            start += amount
    return _chart("bars", values, _labels(list(rows)), _ROW * len(rows), _linear(1, axis))


def treemap(segments: Sequence[Json]) -> Spec:
    """Return the bytes of a package as areas, by kind of segment.

    Args:
        segments: with `name`, `size`, `kind` and `description`.
    """
    nodes: list[Json] = [{"id": "all", "parent": None}]
    nodes += [{"id": kind, "parent": "all"} for kind in dict.fromkeys(s["kind"] for s in segments)]
    nodes += [
        {
            **segment,
            "id": f"{segment['kind']}/{index}",
            "parent": segment["kind"],
            "short": ".".join(segment["name"].split(".")[-2:]),
            "amount": human_size(segment["size"]),
            "colour": colour_of(segment["kind"]),
        }
        for index, segment in enumerate(segments)
        if segment["size"] > 0
    ]
    spec = json.loads((_FOLDER / "treemap.vg.json").read_text(encoding="utf-8"))
    spec["data"][0]["values"] = nodes
    return spec


def errors(dots: Sequence[Json]) -> Spec:
    """Return the errors of each output on each input set by their limits, on a logarithmic axis.

    Args:
        dots: with `row` (method and output), `ratio` (finite and positive), `ok` and `description`.
    """
    rows = dict.fromkeys(dot["row"] for dot in dots)
    ratios = [dot["ratio"] for dot in dots]
    low = math.floor(math.log10(min(*ratios, 0.1)))
    high = max(1, math.ceil(math.log10(max(ratios) * 1.0001)))
    values: list[Json] = []
    labels: dict[float, str] = {}
    top = 0.0
    for row in rows:
        row_dots = [dot for dot in dots if dot["row"] == row]
        labels[top + 14] = row
        first = top + _LABEL + _LANE / 2
        for lane, dot in enumerate(row_dots):
            colour = "var(--c0)" if dot["ok"] else "var(--bad)"
            power = math.log10(dot["ratio"])
            values.append({**dot, "power": power, "y": first + lane * _LANE, "colour": colour})
        top += _LABEL + _LANE * len(row_dots) + 12
    words = "1: an error that is as large as its limit"
    limit = {"limit": 0, "y": 0, "y2": top, "description": words}
    return _chart("errors", values, labels, top, _logarithmic(low, high), [limit])


def latency(spreads: Sequence[Json]) -> Spec:
    """Return quartiles and medians in milliseconds, of the package and of its source; on a
    logarithmic axis where they span decades.

    Args:
        spreads: with `row`, `low`, `median`, `high`, `source` (whether it is the source program's)
            and `description`.
    """
    rows = list(dict.fromkeys(spread["row"] for spread in spreads))
    figures = ("low", "median", "high")
    least = min(spread["low"] for spread in spreads)
    last = max(spread["high"] for spread in spreads)
    spans = least > 0 and last / least > 10**_DECADES
    values = []
    for spread in spreads:
        top = rows.index(spread["row"]) * _ROW + _LABEL
        below, colour = (_BAR - 5, "var(--soft)") if spread["source"] else (4, "var(--c0)")
        at = {name: math.log10(spread[name]) if spans else spread[name] for name in figures}
        values.append({**spread, **at, "y": top + below, "colour": colour})
    if spans:
        x = _logarithmic(math.floor(math.log10(least)), math.ceil(math.log10(last)), " ms")
    else:
        x = _linear(last * 1.04, _unit_axis("ms", last * 1.04))
    return _chart("latency", values, _labels(rows), _ROW * len(rows), x)


def _chart(
    name: str,
    values: Sequence[Json],
    labels: Mapping[float, str],
    height: float,
    x: Json,
    limits: Sequence[Json] = (),
) -> Spec:
    """Return the layers of a chart over each other, below their labels.

    Labels stand at the left, above what they name, which leaves a phone the whole width.

    Args:
        labels: by the pixel, from the top, on which they stand.
        x: the scale and the axis that all layers share.
    """
    spec = json.loads((_FOLDER / "charts.vl.json").read_text(encoding="utf-8"))
    layers = [*spec.pop("layers")[name], spec.pop("labels")]
    texts = [{"y": y, "label": label} for y, label in labels.items()]
    return {
        **spec,
        "height": height,
        "encoding": {"x": x, **spec["encoding"]},
        "layer": layers,
        "data": {"name": "values"},
        "datasets": {"values": values, "limits": limits, "labels": texts},
    }


def _linear(last: float, axis: Json | None) -> Json:
    """Return the channel of a linear scale from zero."""
    return {"type": "quantitative", "scale": {"domain": [0, last], "nice": False}, "axis": axis}


def _logarithmic(low: int, high: int, unit: str = "") -> Json:
    """Return the channel of powers of ten, between two of them."""
    step = f"max(1, ceil(({high} - {low}) / (width / 70)))"
    power = "pow(10, datum.value)"
    label = f"abs(datum.value) < 4 ? format({power}, '~g') : format({power}, '~e')"
    axis = {
        "values": {"expr": f"sequence({low}, {high} + 1, {step})"},
        "labelExpr": f"({label}) + '{unit}'",
    }
    scale = {"domain": [low, high], "nice": False, "zero": False}
    return {"type": "quantitative", "scale": scale, "axis": axis}


def _labels(rows: Sequence[str], height: float = _ROW) -> dict[float, str]:
    return {index * height + _LABEL - 8: row for index, row in enumerate(rows)}


def _unit_axis(unit: str, last: float) -> Json:
    """Return an axis to `last` with round figures.

    None is so near its end that its label, in whatever font, would leave the picture.
    """
    label = f"datum.value > {last} * (1 - 28 / width) ? '' : datum.label + ' {unit}'"
    return {"tickCount": {"expr": "round(width / 90)"}, "labelExpr": label}


# Drawing


def draw(chart: Chart) -> Markup:
    """Draw a chart as SVG, whose size the page's style sets."""
    spec = {**_visible(chart.spec), "width": _WIDTH}
    name = "vega_to_svg" if "marks" in spec else "vegalite_to_svg"
    root = Xml.fromstring(_convert(name, spec).replace(_NAMESPACE, "", 1))
    _prune(root)
    _add_titles(root, chart.links)
    del root.attrib["height"], root.attrib["width"]
    root.attrib |= {"role": "img", "aria-label": chart.label}
    svg = Markup(Xml.tostring(root, encoding="unicode"))
    return Markup('<div class="chart">{}</div>').format(svg)


def _convert(name: str, spec: Json) -> str:
    """Convert a specification to SVG by a function of vl_convert, in a process of its own: the
    library has threads, and a fork of a process that used it would wait for them for ever. A worker
    forks for actions that run user code."""
    drawer = _drawer()
    assert drawer.stdin is not None and drawer.stdout is not None
    drawer.stdin.write(json.dumps([name, spec]) + "\n")
    drawer.stdin.flush()
    if not (line := drawer.stdout.readline()):
        raise RuntimeError(f"{name} ended the process that draws charts")
    svg: str = json.loads(line)
    return svg


@cache
def _drawer() -> subprocess.Popen[str]:
    """Start the process that draws, which ends when its input does."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-Pc", _DRAWER], stdin=pipe, stdout=pipe, text=True)


_DRAWER = """
import json, signal, sys, vl_convert
signal.signal(signal.SIGINT, signal.SIG_IGN)
for line in sys.stdin:
    name, spec = json.loads(line)
    print(json.dumps(getattr(vl_convert, name)(spec)), flush=True)
"""


def _visible(value: Any) -> Any:
    """Return a specification with visible texts: of a control character the library that draws it
    makes no SVG, and then ends the process."""
    if isinstance(value, Mapping):
        return {name: _visible(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_visible(item) for item in value]
    return visible(value) if isinstance(value, str) else value


def _prune(parent: Xml.Element) -> None:
    """Remove what draws nothing, and what the page's style says."""
    for child in list(parent):
        if child.get("display") == "none" or child.get("class") == "background":
            parent.remove(child)
            continue
        _prune(child)
        if child.tag == "g" and not len(child):
            parent.remove(child)
    dropped = list(_DROPPED)
    if parent.get("aria-roledescription") == "axis":  # its labels are texts already
        dropped += ["aria-label", "role"]
    elif parent.get("role") == "graphics-object":
        dropped.append("role")
    for name in dropped:
        parent.attrib.pop(name, None)


def _add_titles(parent: Xml.Element, links: Mapping[str, str]) -> None:
    """Turn the descriptions of marks into tooltips, and wrap marks that lead somewhere in links."""
    for place, child in enumerate(list(parent)):
        _add_titles(child, links)
        if child.get("role") != "graphics-symbol":
            continue
        description = child.attrib.pop("aria-label", "")
        del child.attrib["role"]
        if not description or child.get("aria-hidden"):
            continue
        Xml.SubElement(child, "title").text = description
        if description in links:
            parent.remove(child)
            link = Xml.Element("a", {"href": links[description]})
            link.append(child)
            parent.insert(place, link)
