"""Auto: watches the workspace, and builds what a saved file affects."""

from __future__ import annotations

from pipeline.moments import Command, Feature

FEATURE = Feature(
    "auto",
    "watch the workspace, and rebuild what a saved file affects",
    verbs=(
        Command(
            "auto",
            "watch the workspace, and build what a saved file affects",
            "[package ...]",
            more="Press Ctrl-C to stop watching.",
            examples=(
                ("doit auto vision", "lower and validate one package after each save"),
            ),
            run="pipeline.features.auto.watch:run",
            builds=True,
        ),
    ),
)
