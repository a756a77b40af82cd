"""Hints about what a mistake in a config was meant to be.

misplaced  the section to which a key belongs
syntax     merge conflicts, tabs, wrong indentation, open quotes, and keys without their colons
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "config_hints",
    "name the section that a misplaced key belongs to, and the line of a tab, wrong "
    "indentation, an open quote or a missing colon",
    explain_key="pipeline.features.config_hints.misplaced:find_remedy",
    explain_syntax="pipeline.features.config_hints.syntax:explain_syntax",
)
