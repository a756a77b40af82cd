"""Measuring a package: every method is run, timed, and, where it fails, looked into.

The record of it is kept in the store, and installed by `prove/validate.py` alone.
"""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.compile.inspect.delegation import add_source_lines
from pipeline.compile.lowering_warnings import trace_warnings
from pipeline.compile.quantization_warnings import describe_departure
from pipeline.compile.ranges import trace_narrowed
from pipeline.config.validation import Limits
from pipeline.devices.interface import PackageFiles
from pipeline.devices.session import guarded
from pipeline.plan.actions import Action
from pipeline.plan.kinds.validate import ValidateInputs
from pipeline.program.constant_values import decode_constant
from pipeline.program.eager import common_buffers
from pipeline.program.mapped_files import unlocked
from pipeline.run.build.load import Quantized
from pipeline.run.build.metadata import all_constants
from pipeline.run.build.planned import guard_sources
from pipeline.run.prove.references import judge_references
from pipeline.run.prove.subject import Subject, lines_of_handles
from pipeline.run.stages import Stages
from pipeline.store import digest
from pipeline.store.errors import PipelineError
from pipeline.store.files import record_bytes
from pipeline.store.workspace import Workspace
from pipeline.validate.budget import OF_LOCATING, Budget
from pipeline.validate.bundle import BundleCases, bundle, describe_bundle
from pipeline.validate.crashes import CrashLog
from pipeline.validate.latency import describe_processor, measure_latencies
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


def measure(
    action: Action[ValidateInputs], workspace: Workspace, stages: Stages
) -> tuple[Json, dict[str, bytes]]:
    """Run a package, time it, and find out where it fails.

    Returns:
        The record: what `Validation.to_json` gives, and more; and files that show again what
        failed, by name. The record is kept only if nothing failed and nothing was left out: what
        failed may have failed by accident, and whoever has more time is given more.
    """
    budget = Budget(action.inputs.config.validation.budget)
    settings = action.inputs.config.validation
    bundles = settings.bundle and "only" not in action.key["measured"]
    suites = BundleCases(settings.bundle_limit) if bundles else None
    with guard_sources(list(action.inputs.sources.values()), workspace.store):
        with stages.stage("load"):
            subject = Subject.load(action, workspace)
        record, validation, shown = _measure(subject, stages, budget, suites)
    if validation.ok and validation.is_complete:
        _keep(subject, record, validation, suites, stages)
    return record, shown


def _measure(
    subject: Subject, stages: Stages, budget: Budget, suites: BundleCases | None
) -> tuple[dict[str, Any], Validation, dict[str, bytes]]:
    """Return the record, what it is about, and the files that show again what failed."""
    action, workspace = subject.action, subject.workspace
    programs, examples, settings = subject.programs, subject.examples, subject.settings
    crash_log = CrashLog(workspace.logs, str(action.package), settings.timeout)
    located: dict[str, Located] = {}
    with guarded(crash_log.guard), unlocked():
        with stages.stage("run"):
            running = budget.share(1 - OF_LOCATING)
            validation = _run(subject, crash_log, suites, running)
        opened = PackageFiles.of(subject.pte, subject.ptds)
        gc.collect()  # packages that were loaded, whose backends have weights of their own
        with stages.stage("time"):
            left = running if validation.failures else budget
            times = measure_latencies(
                opened, validation.methods, programs, examples, settings, left
            )
            check_files(subject.folder, subject.key["files"])
        if validation.failures:
            with stages.stage("locate"):
                share = settings.budget * OF_LOCATING  # whatever the last call took
                looking = Budget(max(budget.left, share))
                evidence = subject.evidence(opened, looking)
                located = locate_failures(evidence, validation, examples, looking)
        with stages.stage("reference"):
            judge_references(validation, subject, budget)
    crash_log.clear()
    record = _make_record(subject, validation, located)
    for method in record["methods"]:
        method["latency"] = times[method["method"]]
    files = sorted(subject.key["files"])
    limits = {each.method: each.failing_limits for each in validation.methods}
    judges = {**programs, **_failed_by(validation, subject)}
    shown = reproductions(str(action.package), files, judges, limits, located, action.libraries)
    return record, validation, shown


def _failed_by(validation: Validation, subject: Subject) -> dict[str, ExportedProgram]:
    """Return the quantized programs of the methods that depart from these alone. Raises
    MissingBlobError."""
    failing = [each.method for each in validation.methods if each.fails_quantized]
    quantized = subject.quantized() if failing else {}
    return {method: quantized[method].program for method in failing}


def _run(
    subject: Subject, crash_log: CrashLog, suites: BundleCases | None, budget: Budget
) -> Validation:
    """Validate the package against its programs, and quantized methods against theirs."""
    key, read = subject.key, subject.workspace.store.read
    own = subject.action.inputs.config.constant_methods
    metadata = subject.manifest.get("metadata")
    constants = all_constants({"constant_methods": own, "metadata": metadata})
    quantized = subject.quantized()
    return validate_package(
        subject.pte,
        subject.ptds,
        subject.programs,
        subject.examples,
        subject.settings,
        {name: decode_constant(value, read)[0] for name, value in constants.items()},
        subject.not_run(),
        lines_of_handles(subject.methods, subject.programs, subject.workspace.root),
        key["cases"],
        key["sequences"],
        suites.keep if suites else None,
        {name: each.program for name, each in quantized.items()},
        crash_log.crashes(),
        budget,
        subject.asked,
        subject.describe_instruction,
        _describe_departures(quantized),
        subject.narrowed,
        subject.without_examples,
        subject.listed_shapes,
    )


def _describe_departures(quantized: Mapping[str, Quantized]) -> dict[str, str]:
    """Say, by method, how a program with observers departs from the float one."""
    return {
        name: describe_departure(each.prepared)
        for name, each in quantized.items()
        if each.prepared is not None and each.prepared["agrees"] is False
    }


def _make_record(
    subject: Subject, validation: Validation, located: Mapping[str, Located]
) -> dict[str, Any]:
    """Return a validation's record, with culprits, and what a report shows of the manifest.

    Lines of the source are as they were exported.
    """
    record: dict[str, Any] = validation.to_json()
    for method in record["methods"]:
        found = located.get(method["method"], Located())
        method["culprits"] = list(found.culprits)
        method["culprit_notes"] = list(found.notes)
    methods, programs = subject.methods, subject.programs
    return {
        **record,
        "package": subject.action.package,
        "files": subject.key["files"],
        "processor": describe_processor(),
        **({"only": subject.key["only"].split("+")} if subject.asked is not None else {}),
        **_describe_common_state(subject),
        "delegation": {
            name: add_source_lines(facts["delegation"], programs[name], subject.workspace.root)
            for name, facts in methods.items()
            if name in programs
        },
        "left_float": {
            name: facts["left_float"] for name, facts in methods.items() if "left_float" in facts
        },
        "quantization": {
            name: facts["quantization"]
            for name, facts in methods.items()
            if "quantization" in facts
        },
        "narrowed": {
            name: trace_narrowed(facts["narrowed"], programs[name], subject.workspace.root)
            for name, facts in methods.items()
            if "narrowed" in facts and name in programs
        },
        "warnings": {
            name: trace_warnings(facts["warnings"], programs[name], subject.workspace.root)
            for name, facts in methods.items()
            if "warnings" in facts and name in programs
        },
        "operators": subject.manifest.get("operators", []),
        "sizes": {n: file["size"] for n, file in subject.manifest.get("files", {}).items()},
    }


def _describe_common_state(subject: Subject) -> dict[str, Any]:
    """Return which methods use the same buffers, where some do, and whether they share them."""
    buffers = common_buffers(subject.programs)
    if not buffers:
        return {}
    planning = subject.manifest.get("emit", {}).get("memory_planning", {})
    shared = bool(planning.get("share_mutable_buffers"))
    users = {name: list(methods) for name, methods in buffers.items()}
    return {"common_state": {"shared": shared, "buffers": users}}


def _keep(
    subject: Subject,
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
    blob = store.put(record_bytes(record, sort_keys=False))
    store.put_result(
        subject.key,
        {"record": blob, "blobs": [blob, *blobs]},
        stages.total,
        stages.seconds(),
        stages.peak,
    )


def reproductions(
    package: str,
    names: Sequence[str],
    programs: Mapping[str, ExportedProgram],
    limits: Mapping[str, Sequence[Limits]],
    located: Mapping[str, Located],
    operators: Sequence[str] = (),
) -> dict[str, bytes]:
    """Return the files that show each method that failed, by their path in the package's folder."""
    files: dict[str, bytes] = {}
    for method, found in located.items():
        if not found.calls:
            continue
        try:
            files |= make_reproduction(
                package, method, names, programs, limits[method], found, operators
            )
        except Exception as error:  # it must not hide the failure that it would show
            _log.warning("%s: no reproduce.py: %s", method, error)
    return files


def check_files(folder: Path, files: Mapping[str, digest.Digest]) -> None:
    for name, content in files.items():
        if digest.hash_file(folder / name) != content:
            raise PipelineError(f"{folder.name}/{name}: changed while the build ran; run again")
