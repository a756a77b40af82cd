"""`doit runtimes`: reports which runtimes load and run the built packages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from pipeline.cli.columns import columns
from pipeline.cli.verbs import known_packages
from pipeline.features.toolchains.runtimes import describe_package, run_everywhere
from pipeline.plan.plan import Plan
from pipeline.store.files import write_atomically
from pipeline.store.workspace import Workspace

RUNTIMES = "runtimes.json"


def run(plan: Plan, words: Sequence[str]) -> Iterator[str]:
    """Run packages, by default all, on all runtimes; yield a table with a line for each package.

    Raises:
        PipelineError: a package is not built, or its toolchain's environment can't be asked.
    """
    packages = []
    for package in known_packages(plan, words):
        packages.append(describe_package(plan.workspace.build, package))
    table = run_everywhere(plan.workspace, packages)
    write_table(plan.workspace, table)
    runtimes = list(next(iter(table.values()), {}))
    rows = [("", *runtimes)]
    for package, outcomes in table.items():
        rows.append((package, *outcomes.values()))
    yield from columns(rows)


def write_table(workspace: Workspace, table: Mapping[str, Mapping[str, str]]) -> None:
    """Write the table to `build/`, keeping the rows of packages that were not run this time."""
    path = workspace.build / RUNTIMES
    rows = {**read_table(workspace), **table}
    text = json.dumps(rows, indent=1) + "\n"
    write_atomically(path, text.encode(), workspace.build)


def read_table(workspace: Workspace) -> dict[str, dict[str, str]]:
    """Return the table that was kept, or {} if there is none."""
    try:
        rows: dict[str, dict[str, str]] = json.loads(
            (workspace.build / RUNTIMES).read_text()
        )
    except (OSError, ValueError):
        return {}
    return rows
