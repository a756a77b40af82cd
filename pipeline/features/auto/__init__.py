"""Auto: the workspace is watched, and each saved file builds what it touches."""

from __future__ import annotations

from pipeline.moments import Command, Feature

FEATURE = Feature(
    "auto",
    "watch the workspace, and build what a saved file touches",
    verbs=(
        Command(
            "auto",
            "watch the workspace, and build what a saved file touches",
            "[package ...]",
            more="It ends with Ctrl-C.",
            examples=(
                ("doit auto vision", "lowers and validates one package at each save"),
            ),
            run="pipeline.features.auto.watch:run",
            builds=True,
        ),
    ),
)
