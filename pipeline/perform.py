"""Performing an action: from its kind to the function that does it.

What a worker process runs. Each function commits what it made to the store before it returns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import compile as compiling
from pipeline import digest
from pipeline.actions import Action, exported_blobs
from pipeline.deaths import validated_after
from pipeline.delegation import nodes_of
from pipeline.devices.session import listening
from pipeline.errors import PipelineError
from pipeline.export import export
from pipeline.gates import failed_gates
from pipeline.last_words import LastWords
from pipeline.link import link
from pipeline.objects import object_from_json
from pipeline.package import (
    MANIFEST,
    install,
    install_result,
    make_manifest,
    manifest_bytes,
    read_manifest,
)
from pipeline.plan import Plan
from pipeline.quantization_check import NoiseSettings, checked
from pipeline.report import markdown
from pipeline.source_lines import told
from pipeline.sources import MethodSource
from pipeline.stages import WAIT, Stages
from pipeline.store import MissingBlobError
from pipeline.validate import validate_package
from pipeline.validation import Validation
from pipeline.workspace import Workspace

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def perform(action: Action, workspace: Workspace, stages: Stages, always: bool) -> bool:
    """Performs an action, unless another process did it while this one waited for its turn.

    Args:
        always: performs it whatever the store holds.

    Returns:
        Whether there was nothing to do.

    Raises:
        PipelineError: what a user can mend; anything else is a bug.
    """
    verbs: dict[str, Callable[..., Any]] = {
        "export": export,
        "quantize": compiling.quantize_method,
        "compile": partial(compiling.compile_unit, always=always),
        "link": link_package,
        "validate": validate,
    }
    with ExitStack() as turn:
        with stages.stage(WAIT):
            turn.enter_context(workspace.store.lock(action.digest))
        if not always and _done(action, workspace):
            return True
        verbs[action.kind](action, workspace, stages)
        return False


def _done(action: Action, workspace: Workspace) -> bool:
    store = workspace.store
    if action.kind == "export":  # what it reads, and so its key, may have become known meanwhile
        action = Plan(workspace).export(action.model)
    result = store.result(action.digest)
    if result is None:
        return False
    if action.kind in ("link", "validate"):
        try:
            install_result(workspace, action, result)
        except MissingBlobError:
            return False
        return True
    blobs = exported_blobs(result) if action.kind == "export" else result["blobs"]
    return store.intact(blobs)


def link_package(action: Action, workspace: Workspace, stages: Stages) -> None:
    """Links the objects of a package, and puts the files into `build/`."""
    store = workspace.store
    compiled: dict[str, Any] = {}
    spent = 0.0
    for unit, compile_digest in action.where["compiles"].items():
        entry = store.entry(compile_digest)
        if entry is None:
            raise MissingBlobError(f"the object of {action.package}/{unit} is not in the store")
        compiled[unit] = entry.result
        spent += entry.seconds
    with stages.stage("link"):
        unit_of = {name: unit for unit, result in compiled.items() for name in result["delegation"]}
        units = list(dict.fromkeys(unit_of[name] for name in action.key["order"]))
        objects = [object_from_json(compiled[unit]["object"]) for unit in units]
        constants, order = dict(action.key["constant_methods"]), action.key["order"]
        linked = link(objects, constants, store, order, action.key["layout"])
    with stages.stage("store"):
        blobs = {f"{action.model}.pte": linked.pte}
        blobs |= {f"{stem}.ptd": blob for stem, blob in linked.ptds.items()}
        sizes = {name: {"digest": b.digest, "size": b.size} for name, b in blobs.items()}
        manifest = manifest_bytes(make_manifest(action, compiled, sizes))
        files = {name: blob.digest for name, blob in blobs.items()}
        files[MANIFEST] = store.put(manifest)
        # Who finds a package spares its methods too.
        store.put_result(action.key, {"files": files}, stages.total + spent)
        install(workspace, action, files)


def validate(action: Action, workspace: Workspace, stages: Stages) -> None:
    """Runs a package from disk against its programs, and leaves a report either way.

    Raises:
        PipelineError: the package is not the same function as its programs, or fails a gate.
    """
    package, folder = str(action.package), workspace.package(str(action.package))
    _check_files(folder, action.key["files"])
    methods: Mapping[str, MethodSource] = action.where["sources"]
    with stages.stage("load"), compiling.reading(methods.values()):
        programs = {n: compiling.load_method(m, workspace.store) for n, m in methods.items()}
        examples = {n: compiling.load_examples(m, workspace.store) for n, m in methods.items()}
    settings = action.where["settings"]
    with stages.stage("run"):
        files = sorted(action.key["files"])
        manifest = read_manifest(workspace, package) or {}
        pte = folder / next(name for name in files if name.endswith(".pte"))
        ptds = [folder / name for name in files if name.endswith(".ptd")]
        not_run = _not_run(manifest, action.key["not_run"])
        lines = lines_of_handles(manifest, programs, workspace.root)
        words = LastWords(workspace.logs, package)

        def validated(ending: Mapping[str, str]) -> Validation:
            constants, left = action.where["constant_methods"], {**not_run, **ending}
            return validate_package(pte, ptds, programs, examples, settings, constants, left, lines)

        def against(programs: Mapping[str, ExportedProgram], limits: NoiseSettings) -> Validation:
            return validate_package(pte, ptds, programs, examples, limits, {})

        quantized = _quantized(manifest, workspace)
        amounts = settings.inputs, settings.seed, settings.steps
        with listening(words.say):
            validation = validated_after(words.deaths(), pte.name, validated)
            validation = checked(validation, against, programs, quantized, examples, amounts)
        words.forget()
        _check_files(folder, action.key["files"])
    with stages.stage("report"):
        manifest = read_manifest(workspace, package) or {}
        failures = [*validation.failures, *failed_gates(settings.gates, manifest)]
        record = {
            **validation.to_json(),
            "package": package,
            "files": action.key["files"],
            "ok": not failures,
            "failures": failures,
        }
        report = {
            "validation.json": (json.dumps(record, indent=1, allow_nan=False) + "\n").encode(),
            "report.md": markdown(record, _facts(manifest)).encode(),
        }
        put = {name: workspace.store.put(data) for name, data in report.items()}
        if not failures:
            result = {"files": put, "facts": {"ok": True}}
            workspace.store.put_result(action.key, result, stages.total)
        install(workspace, action, put, ok=not failures)
    if failures:
        more = f" (and {len(failures) - 1} more in {folder.name}/report.md)" if failures[1:] else ""
        raise PipelineError(f"{failures[0]}{more}")


def _quantized(manifest: Mapping[str, Any], workspace: Workspace) -> dict[str, ExportedProgram]:
    """The programs that a package's methods were quantized to, as far as the store has them."""
    found = {}
    for name, facts in manifest.get("methods", {}).items():
        result = workspace.store.result(facts["quantized"]) if facts.get("quantized") else None
        if result is not None:
            with suppress(MissingBlobError):
                found[name] = compiling.load_quantized(result, workspace.store)
    return found


def _not_run(manifest: Mapping[str, Any], reasons: Mapping[str, str]) -> dict[str, str]:
    """By method, why this machine can't run its delegates, or its backend's kernels."""
    return {
        name: "; ".join(f"{backend}: {reasons[backend]}" for backend in used)
        for name, facts in manifest.get("methods", {}).items()
        if (used := [b for b in _backends_in(facts["delegation"]) if b in reasons])
    }


def _backends_in(delegation: Mapping[str, Any]) -> list[str]:
    """The ids of the backends whose delegates or kernels a method calls."""
    return [*delegation["partitions"], *delegation.get("kernels", {})]


def lines_of_handles(
    manifest: Mapping[str, Any], programs: Mapping[str, ExportedProgram], root: Path
) -> dict[str, dict[int, str]]:
    """By method and debug handle, the line of the model's source, as it is now, that an instruction
    of a delegate comes from."""
    found: dict[str, dict[int, str]] = {}
    for name, facts in manifest.get("methods", {}).items():
        places = facts.get("debug_handles", [])
        if places and name in programs:
            nodes = list(nodes_of(programs[name]))
            found[name] = {handle: told(nodes[place], root) for handle, place in places}
    return found


def _check_files(folder: Path, files: Mapping[str, digest.Digest]) -> None:
    for name, content in files.items():
        if digest.of_file(folder / name) != content:
            raise PipelineError(f"{folder.name}/{name}: changed while the build ran; run again")


def _facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a report shows of a manifest."""
    return {
        "delegation": {name: facts["delegation"] for name, facts in manifest["methods"].items()},
        "left_float": {
            name: facts["left_float"]
            for name, facts in manifest["methods"].items()
            if "left_float" in facts
        },
        "sizes": {name: file["size"] for name, file in manifest["files"].items()},
    }
