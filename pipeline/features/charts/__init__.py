"""Charts: the pictures in reports, drawn without a library."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "charts",
    "draw the charts of reports; without it, tables have the same figures",
    draw_chart="pipeline.features.charts.draw:draw",
)
