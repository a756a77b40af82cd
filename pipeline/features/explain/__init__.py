"""Explain: why each action of a package is current or not, to the file, tensor or library."""

from __future__ import annotations

from pipeline.moments import Command, Feature

FEATURE = Feature(
    "explain",
    "explain why an action is current or not, to the file, key, tensor or library",
    verbs=(
        Command(
            "explain",
            "why an action is current or not, and where its time went",
            "package[/method] ...",
            examples=(
                ("doit explain vision/classify", "the file, key, tensor or library"),
            ),
            run="pipeline.features.explain.explain:run",
        ),
    ),
)
