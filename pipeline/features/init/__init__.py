"""Init: a workspace in an empty folder."""

from __future__ import annotations

from pipeline.moments import Command, Feature

FEATURE = Feature(
    "init",
    "make a workspace in an empty folder",
    verbs=(
        Command(
            "init",
            "make a workspace here: a minimal exporter, a config, dodo.py",
            "[folder]",
            more="Files that are there already stay as they are, and it says so.",
            examples=(("doit init shop && cd shop && doit", "a first package"),),
            run="pipeline.features.init.workspace:run",
            anywhere=True,
        ),
    ),
)
