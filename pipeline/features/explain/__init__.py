"""Explain: shows what a run would do, and why actions are current or stale.

Reasons are as precise as a file, a tensor or a library.
"""

from __future__ import annotations

from pipeline.moments import Command, Feature

JSON = "print one line of JSON instead (docs/reference/json.md)"
FEATURE = Feature(
    "explain",
    "show what a run would do and why, down to the file, key, tensor or library",
    verbs=(
        Command(
            "plan",
            "show what a run would do and why, without running it",
            "[package[/method] ...]",
            {
                "resolved": "print the effective config of each method and the origin of each "
                "value",
                "json": JSON,
            },
            "Names may be patterns ('vision*', 'vision/enc*'); without names, all packages are "
            "selected. "
            "The exit status is 1 if a config has mistakes.",
            (
                ("doit plan", "everything that is stale"),
                ("doit plan vision/classify", "one method"),
                ("doit plan --resolved vision", "the effective config"),
            ),
            run="pipeline.features.explain.plan:run",
            record="pipeline.features.explain.forms:PLAN",
        ),
        Command(
            "explain",
            "show why actions are current or stale, or what slowed the last run",
            "[package[/method] ...]",
            {"json": JSON},
            examples=(
                (
                    "doit explain",
                    "the longest chain of the last run, and its idle workers",
                ),
                (
                    "doit explain vision/classify",
                    "the file, key, tensor or library that changed",
                ),
            ),
            run="pipeline.features.explain.explain:run",
            record="pipeline.features.explain.forms:EXPLANATION",
        ),
        Command(
            "why",
            "show which packages depend on a file, tensor, backend or library, and how",
            "<file | tensor | backend | library | $VARIABLE>",
            {"json": JSON},
            "A pattern selects all files or tensors that match it; a folder selects everything "
            "in it. The files that an exporter reads are known only after it has run.",
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
