"""Explain: what a run would do, and why each action of a package is current or not, to the file,
tensor or library."""

from __future__ import annotations

from pipeline.moments import Command, Feature

JSON = "write one line of JSON instead; docs/reference/json.md describes it"
FEATURE = Feature(
    "explain",
    "say what a run would do and why, to the file, key, tensor or library",
    verbs=(
        Command(
            "plan",
            "show what a run would do, and why, without doing it",
            "[package[/method] ...]",
            {
                "resolved": "print the effective config of each method and where each value comes "
                "from",
                "json": JSON,
            },
            "Names may be patterns ('vision*', 'vision/enc*'); without one, it is all of them. "
            "The exit status is 1 where a config has mistakes.",
            (
                ("doit plan", "all that is stale"),
                ("doit plan vision/classify", "one method"),
                ("doit plan --resolved vision", "the resulting config"),
            ),
            run="pipeline.features.explain.plan:run",
            record="pipeline.features.explain.forms:PLAN",
        ),
        Command(
            "explain",
            "say why actions are current or stale; without names, what slowed the last run",
            "[package[/method] ...]",
            {"json": JSON},
            examples=(
                (
                    "doit explain",
                    "the longest chain of the last run, and its idle workers",
                ),
                ("doit explain vision/classify", "the file, key, tensor or library"),
            ),
            run="pipeline.features.explain.explain:run",
            record="pipeline.features.explain.forms:EXPLANATION",
        ),
        Command(
            "why",
            "list the packages that depend on a file, tensor, backend or library, and how",
            "<file | tensor | backend | library | $VARIABLE>",
            {"json": JSON},
            "A pattern stands for all files or tensors that match it, a folder for everything in "
            "it. What an exporter reads is known once it has run.",
            (
                ("doit why models/common.py", "a module that exporters import"),
                ("doit why decoder.embed.weight", "a tensor of a model"),
                ("doit why torchao", "a distribution, or a backend such as xnnpack"),
            ),
            run="pipeline.features.explain.why:run",
            record="pipeline.features.explain.forms:DEPENDENTS",
        ),
    ),
)
