"""Evidence of a package that failed, as its workspace has it: how each method was lowered, which
bytes its build gives, and how it is lowered once more."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram

from pipeline.compile.emit_trace import Instructions
from pipeline.compile.link import link
from pipeline.compile.objects import parse_object
from pipeline.devices.interface import PackageFiles
from pipeline.plan.actions import Action, ValidateInputs
from pipeline.program.graphs import map_places
from pipeline.run.build.compile import emit_methods, lower_methods
from pipeline.run.build.load import load_quantized
from pipeline.store.errors import PipelineError
from pipeline.store.workspace import Workspace
from pipeline.validate.locate.case import Evidence, LoweredMethod

MOST_SECONDS = 600.0  # that a compile may have taken, to be done again


def gather_evidence(
    files: PackageFiles,
    manifest: Mapping[str, Any],
    action: Action[ValidateInputs],
    workspace: Workspace,
    programs: Mapping[str, ExportedProgram],
) -> Evidence:
    """Return the evidence of a package that a validate action runs."""

    @cache
    def lowered(method: str) -> LoweredMethod:
        facts = _facts(manifest, method)
        instructions = Instructions.from_json(facts["instructions"])
        if facts["quantized"] is None:
            return LoweredMethod(programs[method], instructions)
        program, origins = load_quantized(facts["quantized"], method, workspace.store)
        return LoweredMethod(program, instructions, map_places(program, origins))

    @cache
    def built() -> PackageFiles | None:
        known = {name: file["digest"] for name, file in manifest.get("files", {}).items()}
        unchanged = known == dict(action.key["measured"]["files"])
        return None if unchanged else _linked(files, manifest, workspace)

    @cache
    def lower_again(method: str) -> list[LoweredBackendModule]:
        return _again(method, manifest, action, workspace, lowered)

    settings = action.inputs.config.validation
    return Evidence(
        files, programs, settings.select_limits, lowered, built, lower_again, workspace.root
    )


def _facts(manifest: Mapping[str, Any], method: str) -> Mapping[str, Any]:
    facts: Mapping[str, Any] | None = manifest.get("methods", {}).get(method)
    if facts is None or "instructions" not in facts:
        raise PipelineError(f"{method}: the manifest does not say how it was lowered")
    return facts


def _linked(files: PackageFiles, manifest: Mapping[str, Any], workspace: Workspace) -> PackageFiles:
    """Raises MissingBlobError."""
    units = manifest["objects"]
    unit_of = {name: facts["unit"] for name, facts in manifest["methods"].items()}
    names = list(dict.fromkeys(unit_of[method] for method in manifest["order"]))
    objects = [parse_object(units[name]["parts"]) for name in names]
    layout = manifest["emit"].get("layout")
    store = workspace.store
    linked = link(objects, manifest["constant_methods"], store, manifest["order"], layout)
    ptds = tuple(store.read(blob.digest) for _, blob in sorted(linked.ptds.items()))
    return PackageFiles(files.name, store.read(linked.pte.digest), ptds)


def _again(
    method: str,
    manifest: Mapping[str, Any],
    action: Action[ValidateInputs],
    workspace: Workspace,
    lowered: Any,
) -> list[LoweredBackendModule]:
    unit = _facts(manifest, method)["unit"]
    compiled = workspace.store.get(manifest["objects"][unit]["action"])
    if compiled is not None and compiled.seconds > MOST_SECONDS:
        what = f"compiling it took {compiled.seconds:.0f} s, and {MOST_SECONDS:.0f} are the limit"
        raise PipelineError(f"{method}: {what}")
    names = [n for n in action.inputs.sources if _facts(manifest, n)["unit"] == unit]
    programs = {name: lowered(name).program for name in names}
    configs = {name: action.inputs.config.methods[name] for name in names}
    lowered = lower_methods(programs, configs, workspace.root, None)
    _, emission = emit_methods(lowered, action.inputs.config.emit, workspace.root)
    return emission.delegates(method)
