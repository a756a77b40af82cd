"""Drawing charts while a page is made: Vega and Vega-Lite specifications become SVG in the page.

So a page has no script of charts, needs no network, and is small. Colours are variables of the
page's style, so that a chart follows dark mode. The `description` of a mark becomes its tooltip and
its name for screen readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree as Xml

import vl_convert
from markupsafe import Markup

from pipeline.report.elements import Chart

_WIDTHS = {"wide": 960, "narrow": 360}  # pixels
_NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'  # which SVG in a page goes without
_DROPPED = ("aria-roledescription", "font-family", "pointer-events", "class", "version")


def draw(chart: Chart) -> Markup:
    """Draw a chart twice, for screens and for phones; the page's style shows one of the two."""
    return Markup("").join(
        Markup('<div class="chart {}">{}</div>').format(name, _svg(chart, width))
        for name, width in _WIDTHS.items()
    )


def _svg(chart: Chart, width: int) -> Markup:
    spec = {**chart.spec, "width": width}
    convert = vl_convert.vega_to_svg if "marks" in spec else vl_convert.vegalite_to_svg
    root = Xml.fromstring(convert(spec).replace(_NAMESPACE, "", 1))
    _prune(root)
    _add_titles(root, chart.links)
    del root.attrib["height"]
    style = f"max-width:{root.attrib.pop('width')}px"
    root.attrib |= {"role": "img", "aria-label": chart.label, "style": style}
    return Markup(Xml.tostring(root, encoding="unicode"))


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
