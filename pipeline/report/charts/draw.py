"""Charts, drawn while the page is made: Vega and Vega-Lite specifications become SVG in the page.

So a page has no script of charts, needs no network, and is small. Colours are variables of the
page's style, by which a chart follows dark mode; what a mark says (its `description`) becomes a
tooltip and its name for screen readers, and a link where there is one to go to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as Xml

import vl_convert
from markupsafe import Markup

Spec = Mapping[str, Any]

WIDE, NARROW = 960, 360  # pixels; which of the two is seen, the page's style says

_SVG = "http://www.w3.org/2000/svg"
# Comes with the renderer, so that text is as wide on every machine that makes a page.
FONT = "Roboto"
_DROPPED = ("aria-roledescription", "font-family", "pointer-events", "class", "version")

_CONFIG: dict[str, Any] = {
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "domain": False,
        "ticks": False,
        "gridColor": "var(--line)",
        "labelColor": "var(--soft)",
        "labelFontSize": 12,
        "labelPadding": 6,
        "titleColor": "var(--soft)",
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    },
    "text": {"fill": "var(--ink)", "fontSize": 12},
}


@dataclass(frozen=True)
class Chart:
    """A picture with its caption and its legend: names and their colours."""

    title: str
    about: str
    legend: Sequence[tuple[str, str]]
    svg: Markup


def chart(
    title: str,
    about: str,
    legend: Sequence[tuple[str, str]],
    label: str,
    spec: Callable[[int], Spec],
    links: Mapping[str, str] | None = None,
) -> Chart:
    """`spec` makes the specification for a width; `label` and `links` are those of `draw`."""
    return Chart(title, about, legend, draw(spec(WIDE), spec(NARROW), label, links))


def draw(wide: Spec, narrow: Spec, label: str, links: Mapping[str, str] | None = None) -> Markup:
    """A chart for screens and one for phones.

    Args:
        label: what the picture shows, for those who don't see it.
        links: where marks lead to, by their descriptions.
    """
    return Markup("").join(
        Markup('<div class="chart {}">{}</div>').format(name, _svg(spec, label, links or {}))
        for name, spec in (("wide", wide), ("narrow", narrow))
    )


def _svg(spec: Spec, label: str, links: Mapping[str, str]) -> Markup:
    if "marks" in spec:
        text = vl_convert.vega_to_svg({"padding": 0, **spec, "config": _vega_config()})
    else:
        padding = {"left": 0, "right": 0, "top": 2, "bottom": 2}
        text = vl_convert.vegalite_to_svg({"padding": padding, **spec, "config": _CONFIG})
    root = Xml.fromstring(text)
    _prune(root)
    _tell(root, links)
    width = root.attrib.pop("width")
    root.attrib.pop("height", None)
    root.set("role", "img")
    root.set("aria-label", label)
    root.set("style", f"max-width:{width}px")
    return Markup(_serialized(root))


def _vega_config() -> dict[str, Any]:
    return {"text": {"font": FONT, **_CONFIG["text"]}}


def _prune(parent: Xml.Element) -> None:
    """Takes away what draws nothing, and what the page's style says."""
    for child in list(parent):
        hidden = child.get("display") == "none" or child.get("class") == "background"
        if hidden or (child.tag == f"{{{_SVG}}}rect" and child.get("fill") == "white"):
            parent.remove(child)
            continue
        _prune(child)
        if child.tag == f"{{{_SVG}}}g" and not len(child):
            parent.remove(child)
    if parent.get("aria-roledescription") == "axis":  # its labels are texts already
        for name in ("aria-label", "role"):
            parent.attrib.pop(name, None)
    for name in _DROPPED:
        parent.attrib.pop(name, None)
    if parent.get("role") == "graphics-object":
        del parent.attrib["role"]


def _tell(parent: Xml.Element, links: Mapping[str, str]) -> None:
    for place, child in enumerate(list(parent)):
        _tell(child, links)
        if child.get("role") != "graphics-symbol":
            continue
        told = child.attrib.pop("aria-label", "")
        del child.attrib["role"]
        if not told or child.get("aria-hidden"):
            continue
        Xml.SubElement(child, f"{{{_SVG}}}title").text = told
        if told in links:
            parent.remove(child)
            link = Xml.Element(f"{{{_SVG}}}a", {"href": links[told]})
            link.append(child)
            parent.insert(place, link)


def _serialized(root: Xml.Element) -> str:
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
    return Xml.tostring(root, encoding="unicode", short_empty_elements=True)
