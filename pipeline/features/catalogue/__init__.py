"""Catalogue: lists the backends, each with its options."""

from __future__ import annotations

from pipeline.moments import Command, Feature

FEATURE = Feature(
    "catalogue",
    "list the backends that methods can be lowered to, and their options",
    verbs=(
        Command(
            "backends",
            "list the backends that methods can be lowered to, and their options",
            "[name ...]",
            {"json": "print one line of JSON instead (docs/reference/json.md)"},
            examples=(
                ("doit backends vulkan", "the requirements and options of one backend"),
            ),
            run="pipeline.features.catalogue.listing:run",
            record="pipeline.features.catalogue.listing:CATALOGUE",
        ),
    ),
)
