"""Gates: limits that a config sets on a package, and the accepted baselines to compare with.

Without this folder, builds are still validated, but not checked against `validate.gates`.
"""

from __future__ import annotations

from pipeline.moments import Command, Feature

DIFF = Command(
    "diff",
    "compare the build with its baseline, a revision or another build",
    "[revision | path] [package ...]",
    {
        "markdown": "print Markdown, for a pull request",
        "fail-on CHANGE": "exit with status 1 if packages or methods were `removed`, `renamed`, "
        "`new` or `changed`; separate several with commas",
        "json": "print one line of JSON (docs/reference/json.md)",
    },
    "The revision is read from git's objects; the index and the working tree are not touched. "
    "New, removed and renamed packages are shown too.",
    (
        ("doit diff", "against the accepted baselines"),
        ("doit diff main --markdown", "against a branch"),
        (
            "doit diff main --fail-on removed",
            "fail if a package or a method was removed",
        ),
        ("doit diff ../other/build vision", "against another build"),
    ),
    run="pipeline.features.gates.diff:run",
    record="pipeline.features.gates.diff:DIFFERENCES",
)
AFFECTED = Command(
    "affected",
    "list the packages and methods affected by changes since a revision",
    "<revision> [package ...]",
    {"json": "print one line of JSON, for a CI matrix (docs/reference/json.md)"},
    "The keys of actions are compared; nothing is exported or built. A model without an export "
    "in this store counts as changed.",
    (
        ("doit affected main", "since a branch"),
        ("doit affected main --json", "the same as JSON"),
    ),
    run="pipeline.features.gates.affected:run",
    record="pipeline.features.gates.affected:AFFECTED",
)
BASELINE = Command(
    "baseline",
    "record the current figures as the baseline that gates compare with",
    "[package ...]",
    examples=(("doit baseline vision", "write baselines/vision.yaml"),),
    run="pipeline.features.gates.accept:run",
)
FEATURE = Feature(
    "gates",
    "check packages against limits and accepted baselines, and compare builds",
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
