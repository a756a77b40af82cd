"""Measuring a package: every method is run, timed, and, where it fails, looked into.

The record of it is kept in the store, and installed by nobody but `prove`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.compile.inspect.delegation import nodes_of, told_delegation
from pipeline.devices.interface import PackageFiles
from pipeline.devices.session import guarded
from pipeline.plan.actions import Action
from pipeline.program.input_files import read_examples
from pipeline.program.signature import flatten
from pipeline.program.source_lines import told
from pipeline.program.sources import MethodSource
from pipeline.report.files import read_manifest
from pipeline.run import compile as compiling
from pipeline.run.evidence import evidence_of
from pipeline.run.stages import Stages
from pipeline.store import digest
from pipeline.store.errors import PipelineError
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import Workspace
from pipeline.validate.bundle import Suites, bundle, told_of
from pipeline.validate.crashes import LastWords
from pipeline.validate.deaths import validated_after
from pipeline.validate.latency import latencies
from pipeline.validate.locate.case import Located
from pipeline.validate.locate.locate import locate_failures
from pipeline.validate.locate.node_values import together
from pipeline.validate.locate.reproduce import reproduction
from pipeline.validate.package import validate_package
from pipeline.validate.quantization import NoiseSettings, checked
from pipeline.validate.results import Validation

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Json = Mapping[str, Any]
_log = logging.getLogger(__name__)


def known(action: Action, workspace: Workspace) -> Json | None:
    """The record of the same package, measured before under the same conditions."""
    result = workspace.store.result_of(action.key["measured"])
    if result is None or not workspace.store.intact(result["blobs"]):
        return None
    record: Json = json.loads(workspace.store.read(result["record"]))
    return record


def measure(action: Action, workspace: Workspace, stages: Stages) -> tuple[Json, dict[str, bytes]]:
    """What `Validation.to_json` gives and more, and files that show again what failed. The record
    is kept only if nothing failed: what failed may have failed by accident."""
    package, folder = str(action.package), workspace.package(str(action.package))
    key, store = action.key["measured"], workspace.store
    methods: Mapping[str, MethodSource] = action.where["sources"]
    manifest = read_manifest(workspace, package) or {}
    with stages.stage("load"), compiling.reading(methods.values()):
        programs = {n: compiling.load_method(m, store) for n, m in methods.items()}
        given = read_examples(workspace.root, _planned_examples(action), programs)
        examples = {
            n: given.get(n) or compiling.load_examples(m, store) for n, m in methods.items()
        }
    settings = action.where["settings"]
    suites = Suites(settings.bundle_limit) if settings.bundle else None
    files = sorted(key["files"])
    pte = folder / next(name for name in files if name.endswith(".pte"))
    ptds = [folder / name for name in files if name.endswith(".ptd")]
    not_run = _not_run(manifest, key["not_run"])
    lines = lines_of_handles(manifest, programs, workspace.root)
    words = LastWords(workspace.logs, package, settings.timeout)

    def validated(ending: Mapping[str, str]) -> Validation:
        return validate_package(
            pte,
            ptds,
            programs,
            examples,
            settings,
            action.where["constant_methods"],
            {**not_run, **ending},
            lines,
            key["cases"],
            key["sequences"],
            suites.keep if suites else None,
        )

    def against(programs: Mapping[str, ExportedProgram], limits: NoiseSettings) -> Validation:
        return validate_package(pte, ptds, programs, examples, limits, {}, cases={})

    located: dict[str, Located] = {}
    with guarded(words.before):
        with stages.stage("run"):
            quantized = _quantized(manifest, store)
            amounts = settings.inputs, settings.seed, settings.steps
            validation = validated_after(words.deaths(), pte.name, validated)
            validation = checked(validation, against, programs, quantized, examples, amounts)
        opened = PackageFiles.of(pte, ptds)
        with stages.stage("time"):
            times = latencies(opened, validation.methods, programs, examples, settings)
            check_files(folder, key["files"])
        if validation.failures:
            with stages.stage("locate"):
                evidence = evidence_of(opened, key["files"], manifest, action, workspace, programs)
                located = locate_failures(evidence, validation, examples)
    words.forget()
    found = with_culprits(validation.to_json(), located)
    record = {**found, "package": package, "files": key["files"]}
    record |= _facts(manifest, programs, workspace.root)
    for method in record["methods"]:
        method["latency"] = times[method["method"]]
    if validation.ok:
        blobs = []
        if suites:
            with stages.stage("bundle"):
                record["bundle"] = _bundled(pte, suites, validation, store)
            blobs.append(record["bundle"]["digest"])
        blob = store.put(as_bytes(record))
        store.put_result(key, {"record": blob, "blobs": [blob, *blobs]}, stages.total)
    shown = reproductions(package, files, programs, settings, located)
    return record, shown


def _bundled(pte: Path, suites: Suites, validation: Validation, store: Store) -> Json:
    """Makes the bundled program and commits it: its name, size and digest, and what is in it."""
    with store.writer() as file:
        file.write(bundle(pte, suites))
    made = {"file": f"{pte.stem}.bpte", "size": file.size, "digest": file.digest}
    return {**made, "methods": told_of(suites, validation.methods)}


def as_bytes(record: Json) -> bytes:
    return (json.dumps(record, indent=1, allow_nan=False) + "\n").encode()


def _quantized(manifest: Json, store: Store) -> dict[str, ExportedProgram]:
    """The programs that a package's methods were quantized to, as far as the store has them."""
    found = {}
    for name, facts in manifest.get("methods", {}).items():
        result = store.result(facts["quantized"]) if facts.get("quantized") else None
        if result is not None:
            with suppress(MissingBlobError):
                found[name] = compiling.load_quantized(result, store)
    return found


def reproductions(
    package: str,
    names: Sequence[str],
    programs: Mapping[str, ExportedProgram],
    settings: Any,
    located: Mapping[str, Located],
) -> dict[str, bytes]:
    """The files that show each method that failed, by their path in the package's folder."""
    files: dict[str, bytes] = {}
    for method, found in located.items():
        if not found.calls:
            continue
        try:
            calls = [(name, flatten(programs[name], inputs)) for name, inputs in found.calls]
            sources = together({name: programs[name] for name, _ in calls})
            expected = [sources[name].call(inputs, ()) for name, inputs in calls]
            limits = settings.of(method)
            files |= reproduction(package, method, names, calls, expected, limits, found)
        except Exception as error:  # it must not hide the failure that it would show
            _log.warning("%s: no reproduce.py: %s", method, error)
    return files


def with_culprits(record: dict[str, Any], located: Mapping[str, Located]) -> dict[str, Any]:
    """A validation's record, each method with its culprits and what could not be found out."""
    for method in record["methods"]:
        found = located.get(method["method"], Located())
        method["culprits"] = list(found.culprits)
        method["culprit_notes"] = list(found.notes)
    return record


def _planned_examples(action: Action) -> dict[str, list[tuple[str, digest.Digest]]]:
    """By method, the files that its config names, and what was planned to be in them."""
    programs = action.key["measured"]["programs"]
    return {
        name: list(zip(files, programs[name]["examples"], strict=True))
        for name, files in action.where["examples"].items()
        if files
    }


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


def check_files(folder: Path, files: Mapping[str, digest.Digest]) -> None:
    for name, content in files.items():
        if digest.of_file(folder / name) != content:
            raise PipelineError(f"{folder.name}/{name}: changed while the build ran; run again")


def _facts(manifest: Json, programs: Mapping[str, ExportedProgram], root: Path) -> dict[str, Any]:
    """What a report shows of a manifest, with the lines of the source as it is now."""
    methods = manifest.get("methods", {})
    return {
        "delegation": {
            name: told_delegation(facts["delegation"], programs[name], root)
            for name, facts in methods.items()
            if name in programs
        },
        "left_float": {
            name: facts["left_float"] for name, facts in methods.items() if "left_float" in facts
        },
        "sizes": {name: file["size"] for name, file in manifest.get("files", {}).items()},
    }
