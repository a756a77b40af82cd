"""Charts: the pictures in reports, drawn without a library."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "charts",
    "draw the charts of reports; without it, only tables show the figures",
    draw_chart="pipeline.features.charts.draw:draw",
)
