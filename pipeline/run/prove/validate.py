"""Proving a package: it is measured, held to its gates, and reported on.

Measuring runs the package, and takes as long as that takes; its record is kept in the store under a
key of its own, without the gates, so that another gate is a matter of milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.plan.actions import Action
from pipeline.report.files import CONTENTS, REPORT, read_manifest, read_record
from pipeline.report.records import FORMAT
from pipeline.report.write import render_package
from pipeline.run.install import install
from pipeline.run.measure import as_bytes, check_files, known, measure
from pipeline.run.stages import Stages
from pipeline.store import digest
from pipeline.store.errors import PipelineError
from pipeline.store.workspace import Workspace
from pipeline.validate.gates.baseline import read_baseline
from pipeline.validate.gates.figures import Figures
from pipeline.validate.gates.gates import GateResult, checked_gates, failed_gates
from pipeline.validate.integrity import misfits

Json = Mapping[str, Any]


def validate(action: Action, workspace: Workspace, stages: Stages, always: bool = False) -> None:
    """Runs a package from disk against its programs, and leaves a report either way.

    Args:
        always: runs it whatever the store holds.

    Raises:
        PipelineError: the package is not the same function as its programs, or fails a gate.
    """
    package, folder = str(action.package), workspace.package(str(action.package))
    key = action.key["measured"]
    check_files(folder, key["files"])
    baseline = _baseline_of(action, workspace)
    manifest = read_manifest(workspace, package)
    made_of = {name: each["program"] for name, each in key["programs"].items()}
    wrong = list(misfits(folder, manifest, package, made_of, action.where["constant_methods"]))
    measured = None if always else known(action, workspace)
    shown: dict[str, bytes] = {}
    if measured is None:
        measured, shown = measure(action, workspace, stages)
    with stages.stage("report"):
        contents = read_record(folder / CONTENTS)
        gates = _gates(action, manifest, contents, measured, baseline)
        failures = [*wrong, *measured["failures"], *failed_gates(gates)]
        record = {
            "format": FORMAT,
            "model": action.model,
            "target": (manifest or {}).get("target") or "",
            **measured,
            "ok": not failures,
            "failures": failures,
            "gates": [gate.to_json() for gate in gates],
            "baseline": baseline,
            "contents": contents,
            "places": action.where["places"],
        }
        report = {
            REPORT: as_bytes(record),
            **render_package(workspace.root, record),
            **shown,
        }
        put = {name: workspace.store.put(data) for name, data in report.items()}
        if bundled := measured.get("bundle"):
            put[bundled["file"]] = bundled["digest"]
        verdict = {
            "ok": not failures,
            # Whether it is what its source is, so that its figures can be accepted.
            "sound": not (wrong or measured["failures"]),
            "measured": digest.of_json(key),
        }
        if not failures:
            workspace.store.put_result(action.key, {"files": put, "facts": verdict}, stages.total)
        install(workspace, action, put, **verdict)
    if failures:
        more = f" (and {len(failures) - 1} more in {folder.name}/report.md)" if failures[1:] else ""
        raise PipelineError(f"{failures[0]}{more}")


def _gates(
    action: Action,
    manifest: Json | None,
    contents: Json | None,
    measured: Json,
    baseline: Figures | None,
) -> list[GateResult]:
    if not manifest:  # which is a failure by itself
        return []
    places = action.where["places"]
    return checked_gates(action.key["held_to"], manifest, contents, measured, baseline, places)


def _baseline_of(action: Action, workspace: Workspace) -> Figures | None:
    """Raises PipelineError for a baseline that is no more the one of the key, or makes no sense."""
    package = str(action.package)
    path = workspace.baseline(package)
    found = digest.of_file(path) if path.is_file() else None
    if found != action.key["baseline"]:
        raise PipelineError(f"{path.parent.name}/{path.name}: changed while the build ran")
    return read_baseline(workspace, package)
