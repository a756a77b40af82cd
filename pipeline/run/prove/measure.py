"""Measuring a package: every method is run, timed, and, where it fails, looked into.

The record of it is kept in the store, and installed by `prove/validate.py` alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.compile.inspect.delegation import add_source_lines
from pipeline.devices.interface import PackageFiles
from pipeline.devices.session import guarded
from pipeline.plan.actions import Action, ValidateInputs
from pipeline.program.graphs import iter_nodes
from pipeline.program.input_files import read_examples
from pipeline.program.inputs import InputSet
from pipeline.program.source_lines import describe_node
from pipeline.report.records import read_manifest
from pipeline.run.build.load import guard_sources, load_examples, load_method, load_quantized
from pipeline.run.prove.evidence import gather_evidence
from pipeline.run.stages import Stages
from pipeline.store import digest
from pipeline.store.errors import PipelineError
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import Workspace
from pipeline.validate.bundle import BundleCases, bundle, describe_bundle
from pipeline.validate.crashes import CrashLog
from pipeline.validate.latency import measure_latencies
from pipeline.validate.locate.case import Located
from pipeline.validate.locate.locate import locate_failures
from pipeline.validate.locate.reproduce import make_reproduction
from pipeline.validate.package import validate_package
from pipeline.validate.results import Validation

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Json = Mapping[str, Any]
_log = logging.getLogger(__name__)


def find_measured(action: Action[ValidateInputs], workspace: Workspace) -> Json | None:
    """Return the record of the same package, measured before under the same conditions."""
    entry = workspace.store.get_by_key(action.key["measured"])
    if entry is None or not workspace.store.intact(entry.result["blobs"]):
        return None
    record: Json = json.loads(workspace.store.read(entry.result["record"]))
    return record


@dataclass(frozen=True)
class _Subject:
    """A package that is measured: its files, and the programs and example inputs of its methods."""

    action: Action[ValidateInputs]
    workspace: Workspace
    manifest: Json
    programs: Mapping[str, ExportedProgram]
    examples: Mapping[str, list[InputSet]]

    @property
    def key(self) -> Json:
        return self.action.key["measured"]  # type: ignore[no-any-return]

    @property
    def settings(self) -> Any:
        return self.action.inputs.config.validation

    @property
    def folder(self) -> Path:
        return self.workspace.package(str(self.action.package))

    @property
    def pte(self) -> Path:
        return next(self.folder / name for name in self.key["files"] if name.endswith(".pte"))

    @property
    def ptds(self) -> list[Path]:
        names = sorted(name for name in self.key["files"] if name.endswith(".ptd"))
        return [self.folder / name for name in names]


def measure(
    action: Action[ValidateInputs], workspace: Workspace, stages: Stages
) -> tuple[Json, dict[str, bytes]]:
    """Run a package, time it, and find out where it fails.

    Returns:
        The record: what `Validation.to_json` gives, and more; and files that show again what
        failed, by name. The record is kept only if nothing failed: what failed may have failed by
        accident.
    """
    with stages.stage("load"), guard_sources(action.inputs.sources.values()):
        subject = _load(action, workspace)
    programs, examples, settings = subject.programs, subject.examples, subject.settings
    suites = BundleCases(settings.bundle_limit) if settings.bundle else None
    crash_log = CrashLog(workspace.logs, str(action.package), settings.timeout)
    located: dict[str, Located] = {}
    with guarded(crash_log.guard):
        with stages.stage("run"):
            validation = _run(subject, crash_log, suites)
        opened = PackageFiles.of(subject.pte, subject.ptds)
        with stages.stage("time"):
            times = measure_latencies(
                opened, validation.methods, subject.programs, examples, settings
            )
            check_files(subject.folder, subject.key["files"])
        if validation.failures:
            with stages.stage("locate"):
                manifest = subject.manifest
                evidence = gather_evidence(opened, manifest, action, workspace, programs)
                located = locate_failures(evidence, validation, examples)
    crash_log.clear()
    record = _make_record(subject, validation, located)
    for method in record["methods"]:
        method["latency"] = times[method["method"]]
    if validation.ok:
        _keep(subject, record, validation, suites, stages)
    files = sorted(subject.key["files"])
    shown = reproductions(str(action.package), files, programs, settings, located)
    return record, shown


def _load(action: Action[ValidateInputs], workspace: Workspace) -> _Subject:
    sources = action.inputs.sources
    programs = {name: load_method(source, workspace.store) for name, source in sources.items()}
    given = read_examples(workspace.root, _planned_examples(action), programs)
    examples = {
        name: given.get(name) or load_examples(source, workspace.store)
        for name, source in sources.items()
    }
    manifest = read_manifest(workspace, str(action.package)) or {}
    return _Subject(action, workspace, manifest, programs, examples)


def _run(subject: _Subject, crash_log: CrashLog, suites: BundleCases | None) -> Validation:
    """Validate the package against its programs, and quantized methods against theirs."""
    key, manifest = subject.key, subject.manifest
    return validate_package(
        subject.pte,
        subject.ptds,
        subject.programs,
        subject.examples,
        subject.settings,
        subject.action.inputs.config.constant_methods,
        _not_run(manifest, key["not_run"]),
        lines_of_handles(manifest, subject.programs, subject.workspace.root),
        key["cases"],
        key["sequences"],
        suites.keep if suites else None,
        _load_quantized(manifest, subject.workspace.store),
        crash_log.crashes(),
    )


def _make_record(
    subject: _Subject, validation: Validation, located: Mapping[str, Located]
) -> dict[str, Any]:
    """Return a validation's record, each method with its culprits and what could not be found out,
    and what a report shows of the manifest, with the lines of the source as it is now."""
    record: dict[str, Any] = validation.to_json()
    for method in record["methods"]:
        found = located.get(method["method"], Located())
        method["culprits"] = list(found.culprits)
        method["culprit_notes"] = list(found.notes)
    methods, programs = subject.manifest.get("methods", {}), subject.programs
    return {
        **record,
        "package": subject.action.package,
        "files": subject.key["files"],
        "delegation": {
            name: add_source_lines(facts["delegation"], programs[name], subject.workspace.root)
            for name, facts in methods.items()
            if name in programs
        },
        "left_float": {
            name: facts["left_float"] for name, facts in methods.items() if "left_float" in facts
        },
        "sizes": {n: file["size"] for n, file in subject.manifest.get("files", {}).items()},
    }


def _keep(
    subject: _Subject,
    record: dict[str, Any],
    validation: Validation,
    suites: BundleCases | None,
    stages: Stages,
) -> None:
    """Put the record into the store, with the bundled program where one is wanted."""
    store, blobs = subject.workspace.store, []
    if suites:
        with stages.stage("bundle"):
            with store.writer() as file:
                file.write(bundle(subject.pte, suites))
            made = {"file": f"{subject.pte.stem}.bpte", "size": file.size, "digest": file.digest}
            record["bundle"] = {**made, "methods": describe_bundle(suites, validation.methods)}
        blobs.append(file.digest)
    blob = store.put(as_bytes(record))
    store.put_result(subject.key, {"record": blob, "blobs": [blob, *blobs]}, stages.total)


def as_bytes(record: Json) -> bytes:
    return (json.dumps(record, indent=1, allow_nan=False) + "\n").encode()


def _load_quantized(manifest: Json, store: Store) -> dict[str, ExportedProgram]:
    """Load the programs that methods were quantized to, as far as the store has them."""
    found = {}
    for name, facts in manifest.get("methods", {}).items():
        if facts.get("quantized"):
            with suppress(MissingBlobError):
                found[name] = load_quantized(facts["quantized"], name, store).program
    return found


def reproductions(
    package: str,
    names: Sequence[str],
    programs: Mapping[str, ExportedProgram],
    settings: Any,
    located: Mapping[str, Located],
) -> dict[str, bytes]:
    """Return the files that show each method that failed, by their path in the package's folder."""
    files: dict[str, bytes] = {}
    for method, found in located.items():
        if not found.calls:
            continue
        try:
            limits = settings.select_limits(method)
            files |= make_reproduction(package, method, names, programs, limits, found)
        except Exception as error:  # it must not hide the failure that it would show
            _log.warning("%s: no reproduce.py: %s", method, error)
    return files


def _planned_examples(action: Action) -> dict[str, list[tuple[str, digest.Digest]]]:
    """Return the files that the config names for each method, and what was planned to be there."""
    programs = action.key["measured"]["programs"]
    return {
        name: list(zip(limits.examples, programs[name]["examples"], strict=True))
        for name, limits in action.inputs.config.validation.methods.items()
        if limits.examples
    }


def _not_run(manifest: Mapping[str, Any], reasons: Mapping[str, str]) -> dict[str, str]:
    """Return why this machine can't run some methods' delegates, or their backends' kernels."""
    return {
        name: "; ".join(f"{backend}: {reasons[backend]}" for backend in used)
        for name, facts in manifest.get("methods", {}).items()
        if (used := [b for b in _called_backends(facts["delegation"]) if b in reasons])
    }


def _called_backends(delegation: Mapping[str, Any]) -> list[str]:
    """Return the ids of the backends whose delegates or kernels a method calls."""
    return [*delegation["partitions"], *delegation.get("kernels", {})]


def lines_of_handles(
    manifest: Mapping[str, Any], programs: Mapping[str, ExportedProgram], root: Path
) -> dict[str, dict[int, str]]:
    """Return the line of the model's source, as it is now, of each instruction of a delegate, by
    method and debug handle."""
    found: dict[str, dict[int, str]] = {}
    for name, facts in manifest.get("methods", {}).items():
        places = facts.get("debug_handles", [])
        if places and name in programs:
            nodes = list(iter_nodes(programs[name]))
            found[name] = {handle: describe_node(nodes[place], root) for handle, place in places}
    return found


def check_files(folder: Path, files: Mapping[str, digest.Digest]) -> None:
    for name, content in files.items():
        if digest.hash_file(folder / name) != content:
            raise PipelineError(f"{folder.name}/{name}: changed while the build ran; run again")
