"""Rebuild: compiles packages again without any cache, and compares them byte by byte."""

from __future__ import annotations

from pipeline.moments import Command, Feature

FEATURE = Feature(
    "rebuild",
    "compile packages again without any cache, and compare every byte",
    verbs=(
        Command(
            "rebuild",
            "compile again without any cache, and compare every byte",
            "[package ...]",
            more=(
                "The command always runs on this machine, since the workers of a cluster would "
                "return results from their stores."
            ),
            options={
                "exports": "only run the exporters again, and print digests of their programs, "
                "to compare with another machine's",
            },
            examples=(
                ("doit rebuild vision", "show where bytes differ"),
                (
                    "doit rebuild --exports",
                    "find exporters that depend on inputs outside their keys",
                ),
            ),
            run="pipeline.features.rebuild.rebuild:run",
            builds=True,
        ),
    ),
)
