"""Proving a package: it is measured, held to its gates, and reported on.

Measuring runs the package, and takes as long as that takes; its record is kept in the store under a
key of its own, without the gates, so that another gate is a matter of milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.plan.actions import Action, ValidateInputs
from pipeline.report.records import FORMAT, GateRecord, read_manifest, record_bytes
from pipeline.report.write import render_package
from pipeline.run.install import install
from pipeline.run.prove.measure import check_files, find_measured, measure
from pipeline.run.stages import Stages
from pipeline.store import digest
from pipeline.store.errors import PipelineError
from pipeline.store.files import CONTENTS, REPORT, read_record
from pipeline.store.workspace import Workspace
from pipeline.validate.gates.baseline import read_baseline
from pipeline.validate.gates.figures import Figures
from pipeline.validate.gates.gates import check_gates, failed_gates
from pipeline.validate.integrity import check_integrity

Json = Mapping[str, Any]


def validate(
    action: Action[ValidateInputs], workspace: Workspace, stages: Stages, always: bool = False
) -> None:
    """Run a package from disk against its programs, and leave a report either way.

    Args:
        always: runs it whatever the store holds.

    Raises:
        PipelineError: the package is not the same function as its programs, or fails a gate.
    """
    package, folder = str(action.package), workspace.package(str(action.package))
    key = action.key["measured"]
    check_files(folder, key["files"])
    baseline = _read_baseline(action, workspace)
    manifest = read_manifest(workspace, package)
    made_of = {name: each["program"] for name, each in key["programs"].items()}
    wrong = list(
        check_integrity(folder, manifest, package, made_of, action.inputs.config.constant_methods)
    )
    measured = None if always else find_measured(action, workspace)
    shown: dict[str, bytes] = {}
    if measured is None:
        measured, shown = measure(action, workspace, stages)
    with stages.stage("report"):
        record = _make_record(action, folder, manifest, measured, baseline, wrong)
        report = {
            REPORT: record_bytes(record, sort_keys=False),
            **render_package(workspace.root, record),
            **shown,
        }
        put = {name: workspace.store.put(data) for name, data in report.items()}
        if bundled := measured.get("bundle"):
            put[bundled["file"]] = bundled["digest"]
        verdict = {
            "ok": record["ok"],
            # Whether it is what its source is, so that its figures can be accepted.
            "sound": not (wrong or measured["failures"]),
            "measured": digest.hash_json(key),
        }
        result = {"files": put, "facts": verdict}
        if record["ok"]:
            workspace.store.put_result(action.key, result, stages.total)
        install(workspace, action, result)
    if failures := record["failures"]:
        more = f" (and {len(failures) - 1} more in {folder.name}/report.md)" if failures[1:] else ""
        raise PipelineError(f"{failures[0]}{more}")


def _make_record(
    action: Action[ValidateInputs],
    folder: Path,
    manifest: Json | None,
    measured: Json,
    baseline: Figures | None,
    wrong: list[str],
) -> dict[str, Any]:
    """Return the record of the report; `wrong` is in what the package's files don't fit."""
    contents, places = read_record(folder / CONTENTS), action.inputs.places
    gates: list[GateRecord] = []
    if manifest:  # to have none is a failure by itself
        held_to = action.key["held_to"]
        gates = check_gates(held_to, manifest, contents, measured, baseline, places)
    failures = [*wrong, *measured["failures"], *failed_gates(gates)]
    return {
        "format": FORMAT,
        "model": action.model,
        "target": (manifest or {}).get("target") or "",
        **measured,
        "ok": not failures,
        "failures": failures,
        "gates": gates,
        "baseline": baseline and baseline.resolved(),
        "contents": contents,
        "places": places,
    }


def _read_baseline(action: Action, workspace: Workspace) -> Figures | None:
    """Return the accepted figures. Raises PipelineError where they are no more those of the key, or
    make no sense."""
    package = str(action.package)
    path = workspace.baseline(package)
    found = digest.hash_file(path) if path.is_file() else None
    if found != action.key["baseline"]:
        raise PipelineError(f"{path.parent.name}/{path.name}: changed while the build ran")
    return read_baseline(path)
