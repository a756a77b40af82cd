"""Reports which runtimes load and run a package, in a field and a section of its report.

A package that is validated is run on the runtime of each toolchain that is set up. A runtime's
refusal fails nothing by itself: the gate `runs_on` with a target's `runtime` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pipeline.features.toolchains.planning import RUNTIMES
from pipeline.features.toolchains.runtimes import YES, describe_package, run_everywhere
from pipeline.plan.actions import Action
from pipeline.plan.kinds.validate import ValidateInputs
from pipeline.report.cells import name, verdict_cell
from pipeline.report.elements import DataTable, ReportSection
from pipeline.run.prove.judgement import Judgement
from pipeline.store.errors import PipelineError
from pipeline.store.workspace import Workspace

Json = Mapping[str, Any]
FIELD = "runs_in"
_TITLE = "Runs in"
_LEAD = (
    "Each runtime loaded the package and ran its methods once, on inputs of the declared shapes. "
    "Outputs were compared with those of the runtime that validated the package."
)


def prepare_judging(
    action: Action[ValidateInputs], workspace: Workspace
) -> Callable[[Json | None, Json], Judgement]:
    """Return a function that runs a package on all runtimes, if other toolchains are set up."""
    package = str(action.package)

    def judge(manifest: Json | None, measured: Json) -> Judgement:
        if not manifest or not action.key["held_to"].get(RUNTIMES):
            return Judgement({}, (), {})
        try:
            described = describe_package(workspace.build, package)
        except PipelineError:  # an invalid manifest fails elsewhere
            return Judgement({}, (), {})
        table = run_everywhere(workspace, [described])
        return Judgement({FIELD: table[package]}, (), {})

    return judge


def section(report: Json) -> ReportSection:
    """Return the table of runtimes; it is empty if no other toolchain is set up."""
    outcomes = report.get(FIELD)
    if not outcomes:
        return ReportSection("runs-in", _TITLE)
    rows = []
    for runtime, outcome in outcomes.items():
        said, _, more = outcome.partition(": ")
        verdict = "passed" if outcome.startswith(YES) else "failed"
        cell = replace(verdict_cell(verdict), text=said)
        rows.append({"runtime": name(runtime), "runs": cell, "lacks": more})
    table = DataTable("runtimes", "Runtimes of the toolchains", rows)
    return ReportSection("runs-in", _TITLE, _LEAD, table)
