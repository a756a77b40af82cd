"""Listing: packages with their models, targets and methods, also as JSON (`doit list --json`)."""

from __future__ import annotations

from pipeline.moments import Command, Feature

FEATURE = Feature(
    "listing",
    "list packages with their models, targets and methods; without it, `doit list` only lists "
    "tasks",
    verbs=(
        Command(
            "packages",
            "list the packages of the workspace, with their models, targets and methods",
            "[package ...]",
            {"json": "print one line of JSON instead (docs/reference/json.md)"},
            "`doit list --json` prints the same JSON, on one line for all toolchains.",
            (
                ("doit packages", "one line for each"),
                ("doit list --json", "the packages of all toolchains, for programs"),
            ),
            run="pipeline.features.listing.packages:run",
            record="pipeline.features.listing.packages:PACKAGES",
        ),
    ),
    split_command="pipeline.features.listing.take_list:take_list",
)
