"""Headlines: the figure and the limit in a report that decide a method's verdict."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "headlines",
    "name the figure and limit that decide each method's verdict, in tables of methods",
    find_headline="pipeline.features.headlines.figures:find_headline",
)
