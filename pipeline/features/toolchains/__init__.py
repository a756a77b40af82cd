"""Toolchains: named environments with other releases of torch and ExecuTorch to build with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.moments import Command, Feature, Setting
from pipeline.store.setting_table import checked, parse_text

UPGRADE = Command(
    "upgrade",
    "build with another toolchain next to the current one, and report the changes",
    "toolchain [package ...]",
    more=(
        "The other builds go to build/.toolchains/<toolchain>. The report, "
        "build/upgrade-<toolchain>.md, starts with regressions. The exit status is 1 if a package "
        "no longer lowers or no longer passes."
    ),
    examples=(
        ("doit upgrade et15", "all packages"),
        ("doit upgrade et15 vision", "one package"),
    ),
    run="pipeline.features.toolchains.upgrade:run",
    builds=True,
)

RUNTIMES = Command(
    "runtimes",
    "run built packages on every toolchain's runtime, and report failures",
    "[package ...]",
    more="Inputs are generated with the declared shapes. The table is written to "
    "build/runtimes.json.",
    examples=(("doit runtimes vision", "one package"),),
    run="pipeline.features.toolchains.runtimes_verb:run",
)


def _parse_toolchains(value: Any, _: Path) -> dict[str, tuple[str, ...]]:
    """Return the folder of each toolchain's environment, or its requirements, by toolchain name."""
    toolchains = {}
    for name, texts in checked(value, isinstance(value, dict)).items():
        listed_texts = texts if isinstance(texts, list) else [texts]
        is_name = name.replace("-", "").replace("_", "").replace(".", "").isalnum()
        checked(name, is_name and name != "default" and bool(listed_texts))
        toolchains[name] = tuple(map(parse_text, listed_texts))
    return toolchains


SETTINGS = {
    "toolchains": Setting(
        _parse_toolchains,
        "a table of names, each with an environment's folder or with requirements",
        "The other environments to build with, by name. Each is the folder of an environment, or "
        "requirements that pip installs into an environment in the cache folder.",
        has_variable=False,
    ),
}
FEATURE = Feature(
    "toolchains",
    "build packages with other releases of ExecuTorch, run them there, and compare them",
    verbs=(UPGRADE, RUNTIMES),
    settings=SETTINGS,
    options={"toolchain": "pipeline.features.toolchains.driver:run_elsewhere"},
    split_command="pipeline.features.toolchains.routing:split_command",
    elsewhere="pipeline.features.toolchains.routing:find_elsewhere",
    config={"package": "pipeline.features.toolchains.config:add_fields"},
    summarize="pipeline.features.toolchains.planning:summarize",
    planning="pipeline.features.toolchains.planning:ToolchainPlanning",
    describe_key="pipeline.features.toolchains.planning:describe_key",
    judge="pipeline.features.toolchains.load_matrix:prepare_judging",
    sections={15: "pipeline.features.toolchains.load_matrix:section"},
    report_fields={"runs_in": "pipeline.features.toolchains.outline:RUNS_IN"},
    outlines={"runtime": "pipeline.features.toolchains.kept_answers:OUTLINE"},
    run_elsewhere="pipeline.features.toolchains.runtimes:find_refusals",
)
