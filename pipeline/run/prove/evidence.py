"""What a workspace knows of a package that failed: how each method was lowered, which bytes its
build gives, and how it is lowered once more."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from pipeline.compile.emit import emit
from pipeline.compile.emit_trace import Instructions, recording
from pipeline.compile.inspect.delegation import origin_places
from pipeline.compile.link import link
from pipeline.compile.objects import object_from_json
from pipeline.config.passes import load_passes
from pipeline.devices.interface import PackageFiles
from pipeline.plan.actions import Action
from pipeline.run import compile as compiling
from pipeline.store.errors import PipelineError
from pipeline.store.workspace import Workspace
from pipeline.validate.locate.case import Again, Evidence, Made

MOST_SECONDS = 600.0  # that a compile may have taken, to be done again


def evidence_of(
    files: PackageFiles,
    digests: Mapping[str, str],
    manifest: Mapping[str, Any],
    action: Action,
    workspace: Workspace,
    programs: Mapping[str, ExportedProgram],
) -> Evidence:
    """Of a package that a validate action runs.

    Args:
        digests: of its files, as they are on disk.
    """

    @cache
    def made(method: str) -> Made:
        facts = _facts(manifest, method)
        instructions = Instructions.of_json(facts["instructions"])
        if facts["quantized"] is None:
            return Made(programs[method], instructions)
        result = workspace.store.result(facts["quantized"])
        if result is None:
            raise PipelineError(f"{method}: its quantized program is no longer in the store")
        program = compiling.load_quantized(result, workspace.store)
        return Made(program, instructions, origin_places(program, result["origins"]))

    @cache
    def built() -> PackageFiles | None:
        known = {name: file["digest"] for name, file in manifest.get("files", {}).items()}
        return None if known == dict(digests) else _linked(files, manifest, workspace)

    @cache
    def again(method: str) -> Again:
        return _again(method, manifest, action, workspace, made)

    settings = action.where["settings"]
    return Evidence(files, programs, settings.of, made, built, again, workspace.root)


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
    objects = [object_from_json(units[name]["parts"]) for name in names]
    layout = manifest["emit"].get("layout")
    store = workspace.store
    linked = link(objects, manifest["constant_methods"], store, manifest["order"], layout)
    ptds = tuple(store.read(blob.digest) for _, blob in sorted(linked.ptds.items()))
    return PackageFiles(files.name, store.read(linked.pte.digest), ptds)


def _again(
    method: str,
    manifest: Mapping[str, Any],
    action: Action,
    workspace: Workspace,
    made: Any,
) -> Again:
    unit = _facts(manifest, method)["unit"]
    compiled = workspace.store.entry(manifest["objects"][unit]["action"])
    if compiled is not None and compiled.seconds > MOST_SECONDS:
        what = f"compiling it took {compiled.seconds:.0f} s, and {MOST_SECONDS:.0f} are the limit"
        raise PipelineError(f"{method}: {what}")
    names = [n for n in action.where["sources"] if _facts(manifest, n)["unit"] == unit]
    programs = {name: made(name).program for name in names}
    configs = {name: action.where["configs"][name] for name in names}
    lowered = compiling.lower_methods(programs, configs, workspace.root, None)
    settings = action.where["emit"]
    with recording() as emission:
        emit(lowered, settings, load_passes(settings.passes, workspace.root))
    return Again(programs[method], [module for _, module in emission.delegates(method)])


def files_of(folder: Path, names: Mapping[str, Any]) -> PackageFiles:
    """Those of a package in its folder."""
    pte = folder / next(name for name in names if name.endswith(".pte"))
    return PackageFiles.of(pte, [folder / n for n in sorted(names) if n.endswith(".ptd")])
