"""Check: reports whether configs are valid, without building anything."""

from __future__ import annotations

from pipeline.moments import Command, Feature

FEATURE = Feature(
    "check",
    "check configs without building anything; each build checks the configs that it uses",
    verbs=(
        Command(
            "check",
            "check configs only, without torch, for editors and pre-commit",
            "[package | config file ...]",
            more="The exit status is 1 if a config has mistakes.",
            examples=(
                ("doit check", "all configs"),
                ("doit check vision", "one config"),
            ),
            run="pipeline.features.check.verb:run",
        ),
    ),
)
