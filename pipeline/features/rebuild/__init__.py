"""Rebuild: packages are compiled again without any cache, and compared byte by byte."""

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
            more="All of it runs on this machine, whatever the executor: the stores of a cluster's "
            "workers would answer for it.",
            options={
                "exports": "only run the exporters again, and print digests of what they give, to "
                "compare with those of another machine",
            },
            examples=(
                ("doit rebuild vision", "says where bytes differ"),
                (
                    "doit rebuild --exports",
                    "says which exporters depend on what no key holds",
                ),
            ),
            run="pipeline.features.rebuild.rebuild:run",
            builds=True,
        ),
    ),
)
