"""Explain: what a run would do, and why each action of a package is current or not, to the file,
tensor or library."""

from __future__ import annotations

from pipeline.moments import Command, Feature

FEATURE = Feature(
    "explain",
    "say what a run would do and why, to the file, key, tensor or library",
    verbs=(
        Command(
            "plan",
            "what a run would do, and why, without doing it",
            "[package[/method] ...]",
            {
                "resolved": "print what each method finally gets instead, and where it was written"
            },
            "Names may be patterns ('vision*', 'vision/enc*'); without a name, all are meant. "
            "The exit status is 1 where a config has mistakes.",
            (
                ("doit plan", "all that is stale"),
                ("doit plan vision/classify", "one method"),
                ("doit plan --resolved vision", "the config that comes of the file"),
            ),
            run="pipeline.features.explain.plan:run",
        ),
        Command(
            "explain",
            "why actions are current or not; without names, what bounded the last run",
            "[package[/method] ...]",
            examples=(
                (
                    "doit explain",
                    "the longest chain of the last run, and its idle workers",
                ),
                ("doit explain vision/classify", "the file, key, tensor or library"),
            ),
            run="pipeline.features.explain.explain:run",
        ),
    ),
)
