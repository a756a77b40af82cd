"""Scatter charts: a dot per item, and a line through the front."""

import pytest

from pipeline.features.charts.draw import draw

TICKS = [(0.0, "0"), (5.0, "5"), (10.0, "10")]


def dot(x, y, front=False):
    facts = {"colour": "var(--c0)", "radius": 4, "description": f"at {x}"}
    return {"x": x, "y": y, "front": front, **facts}


def draw_dots(*dots, ticks=TICKS):
    axes = {"x_title": "size", "y_title": "sqnr", "x_ticks": ticks, "y_ticks": ticks}
    return draw("scatter", {"dots": dots, **axes})


def of_kind(drawing, tag):
    _, shapes = drawing
    return [shape for shape in shapes if shape.tag == tag]


def test_dots_stand_where_their_figures_are():
    drawing = draw_dots(dot(0, 0, True), dot(5, 5), dot(10, 10, True))
    places = [
        (shape.attributes["cx"], float(shape.attributes["cy"]))
        for shape in of_kind(drawing, "circle")
    ]
    shares = [float(across.removesuffix("%")) for across, _ in places]
    assert shares[1] == pytest.approx((shares[0] + shares[2]) / 2, abs=0.01)
    downs = [down for _, down in places]
    assert downs[0] > downs[1] > downs[2] > 0 and downs[0] < drawing[0]
    assert [shape.title for shape in of_kind(drawing, "circle")] == ["at 0", "at 5", "at 10"]
    (front,) = [line for line in of_kind(drawing, "line") if "opacity" in line.attributes]
    assert front.attributes["x1"] == places[0][0] and front.attributes["x2"] == places[2][0]
    assert {"size", "sqnr", "5"} <= {shape.text for shape in of_kind(drawing, "text")}


def test_one_dot_has_no_line_and_an_axis_may_be_one_value():
    drawing = draw_dots(dot(3, 3, True), ticks=[(3.0, "3"), (3.0, "3")])
    assert len(of_kind(drawing, "circle")) == 1
    assert not [line for line in of_kind(drawing, "line") if "opacity" in line.attributes]
