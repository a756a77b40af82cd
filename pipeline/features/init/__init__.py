"""Init: a new workspace in an empty folder."""

from __future__ import annotations

from pipeline.moments import Command, Feature

FEATURE = Feature(
    "init",
    "create a workspace in an empty folder",
    verbs=(
        Command(
            "init",
            "create a workspace with a minimal exporter, a config and dodo.py",
            "[folder]",
            more="Existing files are kept and reported.",
            examples=(
                ("doit init shop && cd shop && doit", "create and build a package"),
            ),
            run="pipeline.features.init.workspace:run",
            anywhere=True,
        ),
    ),
)
