"""Charts: positions of shapes, texts for screen readers, and that none leaves the picture."""

from itertools import pairwise
from types import SimpleNamespace
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import moments
from pipeline.features.charts import draw as charts
from pipeline.features.charts.axes import linear_axis, logarithmic_axis
from pipeline.features.charts.shapes import cut_text
from pipeline.features.charts.treemap import Box, split_box
from pipeline.features.pages.render import _environment
from pipeline.report.colours import LEFT
from pipeline.report.elements import WIDTH, Chart, DataTable, ReportSection

PIECES = [(30, "var(--c0)", "encode: XnnpackBackend: 30"), (10, LEFT, "encode: left: 10")]


def drawn(drawing, links=None):
    """Return the SVG that a page contains."""
    chart = SimpleNamespace(label='Bytes of "all"', drawing=drawing, links=links or {})
    module = _environment().get_template("parts.html.j2").make_module({})
    return Xml.fromstring(str(module.chart(chart))).find("svg")


def of_kind(drawing, tag):
    _, shapes = drawing
    return [shape for shape in shapes if shape.tag == tag]


def spread(row, median, source=False):
    return {
        "row": row,
        "low": median / 2,
        "median": median,
        "high": median * 2,
        "source": source,
        "description": f"{row}: {median}",
    }


def dot(row, ratio):
    ok = ratio <= 1
    return {"row": row, "ratio": ratio, "ok": ok, "description": f"{row}: {ratio}"}


TILES = [
    {
        "name": f"layers.{n}.weight",
        "size": size,
        "group": group,
        "colour": colour,
        "description": f"weight {n}",
    }
    for n, (size, group, colour) in enumerate(
        [(900, "float32", "var(--c0)"), (190, "no tensors", LEFT), (9, "float32", "var(--c0)")]
    )
]
DRAWINGS = {
    "bars": charts.bars({"encode": PIECES, "a method of a name " * 9: PIECES}, percents=True),
    "treemap": charts.treemap(TILES),
    "errors": charts.errors([dot("run, output", 0.02), dot("run, output", 3.0), dot("b", 1.0)]),
    "latency": charts.latency([spread("run", 2.0), spread("run", 3.0, source=True)]),
    "decades": charts.latency([spread("run", 0.01), spread("run", 90.0, source=True)]),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_picture_says_what_it_shows_and_every_mark_what_it_is(name):
    svg = drawn(DRAWINGS[name])
    assert (svg.get("role"), svg.get("aria-label")) == ("img", 'Bytes of "all"')
    marks = [mark for mark in svg if mark.tag in ("rect", "circle")]
    assert marks and all(mark.findtext("title") for mark in marks)
    lines = svg.findall("line")
    assert all(line.get("aria-hidden") or line.findtext("title") for line in lines)


@pytest.mark.parametrize("name", DRAWINGS)
def test_colours_are_variables_of_the_style(name):
    for shape in drawn(DRAWINGS[name]):
        for attribute in ("fill", "stroke"):
            assert shape.get(attribute, "var(--ink)").startswith("var(--")


@pytest.mark.parametrize("name", DRAWINGS)
def test_shapes_are_within_their_picture(name):
    svg = drawn(DRAWINGS[name])
    height = float(svg.get("height"))
    for shape in svg:
        across = {key: shape.get(key, "0%") for key in ("x", "width", "x1", "x2", "cx")}
        assert all(share.endswith("%") for share in across.values())
        x, width, *others = (float(share[:-1]) for share in across.values())
        assert x >= 0 and x + width <= 100.01
        assert all(0 <= other <= 100.01 for other in others)
        down = {key: float(shape.get(key, 0)) for key in ("y", "height", "y2", "cy")}
        assert down["y"] >= 0 and down["y"] + down["height"] <= height
        assert down["y2"] <= height and down["cy"] <= height


def test_a_mark_that_leads_somewhere_is_a_link():
    svg = drawn(DRAWINGS["bars"], {PIECES[0][2]: "encode/report.html"})
    links = [link for link in svg.findall("a") if link.get("href") == "encode/report.html"]
    assert [link.findtext("rect/title") for link in links] == [PIECES[0][2]] * 2


def test_pieces_of_a_bar_take_their_shares():
    boxes = of_kind(DRAWINGS["bars"], "rect")[:2]
    assert [box.attributes["x"] for box in boxes] == ["0%", "75%"]
    assert [box.attributes["width"] for box in boxes] == ["75%", "25%"]
    half = charts.bars({"encode": PIECES}, whole=80)
    boxes = of_kind(half, "rect")
    assert [box.attributes["width"] for box in boxes] == ["37.5%", "12.5%"]


def test_texts_are_cut_and_hidden_where_a_title_says_the_same():
    texts = drawn(DRAWINGS["bars"]).findall("text")
    assert any(text.text.endswith("…") for text in texts)
    assert [text.get("class") for text in texts if text.text.startswith("a m")] == [
        "narrow",
        "wide",
    ]
    tiles = drawn(DRAWINGS["treemap"]).findall("text")
    assert {"layers.0.weight", "900 B"} <= {text.text for text in tiles}
    assert all(text.get("aria-hidden") == "true" for text in tiles)
    # The second tile is 50 pixels wide on a phone, and 156 on a large screen.
    second = [text for text in tiles if text.get("fill") == "var(--ink)"]
    assert [(text.get("class"), text.text) for text in second] == [
        ("wide", "layers.1.weight"),
        ("wide", "190 B"),
    ]
    assert cut_text("abcdef", 42) == "abcdef" and cut_text("abcdef", 21) == "ab…"


def test_an_error_is_placed_by_its_decade_and_a_failed_one_stands_out():
    circles = of_kind(DRAWINGS["errors"], "circle")
    within, failed, at_limit = circles
    assert (within.attributes["fill"], failed.attributes["fill"]) == ("var(--c0)", "var(--bad)")
    lines = of_kind(DRAWINGS["errors"], "line")
    (limit,) = [shape for shape in lines if "stroke-dasharray" in shape.attributes]
    assert limit.attributes["x1"] == at_limit.attributes["cx"]
    assert float(within.attributes["cx"][:-1]) < float(limit.attributes["x1"][:-1])
    assert float(failed.attributes["cx"][:-1]) > float(limit.attributes["x1"][:-1])


@given(st.floats(1e-6, 1e6))
def test_a_linear_axis_has_a_few_round_figures(last):
    scale, ticks = linear_axis(last, " ms")
    assert 2 <= len(ticks) <= 9
    assert ticks[0] == (0, "0 ms")
    assert all(scale(value) <= WIDTH for value, _ in ticks)


@given(st.floats(1e-12, 1e12), st.floats(1e-12, 1e12))
def test_a_logarithmic_axis_holds_its_values(one, other):
    least, most = sorted((one, other))
    scale, ticks = logarithmic_axis(least, most)
    assert 0 <= scale(least) <= scale(most) <= WIDTH + 1e-6
    places = [scale(value) for value, _ in ticks]
    assert all(b - a > 50 for a, b in pairwise(places))


def test_powers_of_ten_are_short():
    ticks = [text for _, text in logarithmic_axis(1e-8, 1, " ms")[1]]
    assert ticks == ["1e−8 ms", "1e−6 ms", "1e−4 ms", "0.01 ms", "1 ms"]


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=60))
def test_areas_of_a_treemap_are_in_proportion_and_within(sizes):
    sizes = sorted(sizes, reverse=True)
    boxes = split_box(sizes, Box(0, 0, 400, 300))
    assert len(boxes) == len(sizes)
    for size, box in zip(sizes, boxes, strict=True):
        assert box.width * box.height == pytest.approx(120_000 * size / sum(sizes), rel=1e-6)
        assert box.left >= -1e-6 and box.left + box.width <= 400 + 1e-6
        assert box.top >= -1e-6 and box.top + box.height <= 300 + 1e-6


def test_equal_areas_are_nearly_square():
    boxes = split_box([1] * 12, Box(0, 0, 400, 300))
    assert {(round(box.width), round(box.height)) for box in boxes} == {(100, 100)}


def test_without_the_feature_a_section_keeps_its_tables(monkeypatch):
    table = DataTable("times", "Times", [{"method": "encode"}])

    def parts():
        chart = Chart("Title.", "about", [], "label", "bars", {"rows": {"encode": PIECES}})
        return [type(part) for part in ReportSection("times", "Times", chart, table).parts]

    assert parts() == [Chart, DataTable]
    features = [feature for feature in moments.find_features() if feature.name != "charts"]
    monkeypatch.setattr(moments, "find_features", lambda: features)
    assert parts() == [DataTable]


def test_a_small_piece_of_a_bar_can_be_seen():
    """0.1 of 90 MB would otherwise be half a pixel."""
    pieces = [(90_000_000, "var(--c0)", "shared"), (100_000, "var(--left)", "own"), (0, "", "none")]
    boxes = of_kind(charts.bars({"asr": pieces}), "rect")
    shared, own, none = (float(box.attributes["width"][:-1]) for box in boxes)
    assert own == pytest.approx(100 * 3 / WIDTH, abs=0.01)
    assert none == 0 and shared + own == pytest.approx(100, abs=0.01)
