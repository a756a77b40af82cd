"""Gates: limits that a config sets on a package, and the accepted baselines that they compare with.

Deleting this folder leaves builds that are validated and held to no limit of `validate.gates`.
"""

from __future__ import annotations

from pipeline.moments import Command, Feature

DIFF = Command(
    "diff",
    "compare the build with its baseline, a revision or another build",
    "[revision | path] [package ...]",
    {
        "markdown": "write Markdown, for a pull request",
        "fail-on CHANGE": "exit with status 1 where packages or methods were `removed`, `renamed`, "
        "`new` or `changed`; several are joined by commas",
        "json": "write one line of JSON; docs/reference/json.md describes it",
    },
    "A revision's objects are read from git: the index and the work tree stay as they are. "
    "Packages that are new, removed or renamed since are part of what is shown.",
    (
        ("doit diff", "with the accepted baselines"),
        ("doit diff main --markdown", "with a branch"),
        (
            "doit diff main --fail-on removed",
            "fails where a package or a method is gone",
        ),
        ("doit diff ../other/build vision", "with another build"),
    ),
    run="pipeline.features.gates.diff:run",
    record="pipeline.features.gates.diff:DIFFERENCES",
)
AFFECTED = Command(
    "affected",
    "list the packages and methods that a change since a revision touches",
    "<revision> [package ...]",
    {
        "json": "write one line of JSON, for a CI's matrix; docs/reference/json.md describes it"
    },
    "Keys of actions are compared; nothing is exported or built. A model that this store has no "
    "export of is taken for changed.",
    (
        ("doit affected main", "since a branch"),
        ("doit affected main --json", "since, packages (package, state, lower, ...)"),
    ),
    run="pipeline.features.gates.affected:run",
    record="pipeline.features.gates.affected:AFFECTED",
)
BASELINE = Command(
    "baseline",
    "record the current figures as the baseline that gates compare with",
    "[package ...]",
    examples=(("doit baseline vision", "writes baselines/vision.yaml"),),
    run="pipeline.features.gates.accept:run",
)
FEATURE = Feature(
    "gates",
    "hold packages to limits and accepted baselines, and compare builds",
    verbs=(DIFF, AFFECTED, BASELINE),
    config={
        "validate.gates": "pipeline.features.gates.kinds:add_package_fields",
        "validate.methods.<method>.gates": "pipeline.features.gates.kinds:add_method_fields",
    },
    report_fields={
        "gates": "pipeline.features.gates.records:GATES",
        "baseline": "pipeline.features.gates.records:BASELINE",
    },
    judge="pipeline.features.gates.judge:prepare_judging",
    sections={10: "pipeline.features.gates.section:section"},
    overview_sections={20: "pipeline.features.gates.section:changes_section"},
    highlights="pipeline.features.gates.section:find_changes",
    read_build="pipeline.features.gates.figures:read_build",
    parse_baseline="pipeline.features.gates.baseline:parse_baseline",
    compare_builds="pipeline.features.gates.comparison:compare_builds",
)
