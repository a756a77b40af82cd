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
            examples=(("doit rebuild vision", "says where bytes differ"),),
            run="pipeline.features.rebuild.rebuild:run",
            builds=True,
        ),
    ),
)
