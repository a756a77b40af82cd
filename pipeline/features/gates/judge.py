"""Checks a measured package against the gates of its config and its accepted baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pipeline.features.gates.baseline import read_baseline
from pipeline.features.gates.gates import check_gates, failed_gates
from pipeline.features.gates.outputs import output_shapes
from pipeline.features.gates.records import GateRecord
from pipeline.moments import call_all
from pipeline.plan.actions import Action
from pipeline.plan.kinds.validate import ValidateInputs
from pipeline.report.records import read_fitting
from pipeline.run.prove.judgement import Judgement
from pipeline.store.errors import PipelineError
from pipeline.store.files import CONTENTS, CONTRACT
from pipeline.store.workspace import Workspace

Json = Mapping[str, Any]


def prepare_judging(
    action: Action[ValidateInputs], workspace: Workspace
) -> Callable[[Json | None, Json], Judgement]:
    """Read the accepted baseline, and return the function that judges a package.

    The function takes the package's manifest and measurements. Raises PipelineError if the baseline
    changed or is invalid.
    """
    baseline = _read_baseline(action, workspace)
    folder = workspace.package(str(action.package))

    def judge(manifest: Json | None, measured: Json) -> Judgement:
        gates: list[GateRecord] = []
        if manifest:  # a missing manifest is itself a failure
            gates = check_gates(
                _run_on_targets(action.key["held_to"], workspace, str(action.package)),
                manifest,
                read_fitting(folder / CONTENTS),
                measured,
                baseline,
                action.inputs.places,
                action.inputs.record.get("family", {}).get("packages", {}),
                read_fitting(folder / CONTRACT),
            )
        shapes: dict[str, dict[str, str]] = {}
        for name, facts in (manifest or {}).get("methods", {}).items():
            shapes[name] = output_shapes(facts.get("signature", {}))
        return Judgement(
            record={"gates": gates, "baseline": baseline, "output_shapes": shapes},
            failures=failed_gates(gates),
            facts=_describe_unrecorded(gates),
        )

    return judge


def _run_on_targets(held_to: Json, workspace: Workspace, package: str) -> Json:
    """Return the `held_to` settings, with the refusals of targets' runtimes by method."""
    targets = {}
    for name, facts in held_to.get("targets", {}).items():
        targets[name] = dict(facts)
        if facts.get("runtime"):
            targets[name]["refusals"] = _find_refusals(
                workspace, facts["runtime"], package
            )
    return {**held_to, "targets": targets}


def _find_refusals(workspace: Workspace, toolchain: str, package: str) -> Json:
    answers = list(call_all("run_elsewhere", workspace, toolchain, package))
    if not answers:
        return {"": "this installation has no feature that runs it there (toolchains)"}
    return answers[0]  # type: ignore[no-any-return]


def _read_baseline(action: Action, workspace: Workspace) -> Json | None:
    """Return the accepted figures.

    Raises PipelineError if the baseline no longer matches the key or is invalid.
    """
    path = workspace.baseline(str(action.package))
    if workspace.find_data(path) != action.key["baseline"]:
        raise PipelineError(
            f"{path.parent.name}/{path.name}: changed while the build ran"
        )
    return read_baseline(path)


def _describe_unrecorded(gates: Iterable[GateRecord]) -> dict[str, list[str]]:
    """Return the names of gates that have no baseline yet, as the fact `no_baseline`, or {}."""
    names = [gate["gate"] for gate in gates if gate.get("left_alone") == "no baseline"]
    if names:
        return {"no_baseline": list(dict.fromkeys(names))}
    return {}
