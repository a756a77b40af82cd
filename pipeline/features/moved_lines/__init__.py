"""Moved lines: measurements stay valid if an edit moves lines of a model but changes no program.

The record then quotes the lines again.
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "moved_lines",
    "keep measurements when lines of a model move; without it, the packages are measured again",
    find_quotes="pipeline.features.moved_lines.quotes:find_quotes",
    quote_anew="pipeline.features.moved_lines.quotes:quote_anew",
)
