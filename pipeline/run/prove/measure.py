"""Measures a package: runs and times every method, and investigates those that fail.

The record is kept in the store; only `prove/validate.py` installs it.
"""

from __future__ import annotations

import gc
import logging
import platform
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pipeline.compile.inspect.traced_facts import (
    add_source_lines,
    trace_operators,
)
from pipeline.devices.interface import PackageFiles
from pipeline.devices.session import guarded
from pipeline.moments import call_all, has_feature
from pipeline.plan.actions import Action
from pipeline.plan.kinds.validate import ValidateInputs
from pipeline.program.constant_values import decode_constant
from pipeline.program.eager import common_buffers
from pipeline.program.mapped_files import unlocked
from pipeline.run.build.metadata import all_constants
from pipeline.run.build.planned import guard_sources
from pipeline.run.prove.call_times import timed_calls
from pipeline.run.prove.measured import check_files
from pipeline.run.prove.measuring import Measurement, Measuring
from pipeline.run.prove.subject import Subject, lines_of_handles
from pipeline.run.stages import Stages
from pipeline.store import digest
from pipeline.store.errors import plural
from pipeline.store.file_digests import FileDigests
from pipeline.store.files import record_bytes
from pipeline.store.settings import usable_cores
from pipeline.store.toolchain import cpu_fields
from pipeline.store.workspace import Workspace
from pipeline.validate.budget import OF_LOCATING, Budget
from pipeline.validate.crashes import CrashLog
from pipeline.validate.package import validate_package
from pipeline.validate.references import Lane, OpenLane
from pipeline.validate.results import Validation

Json = Mapping[str, Any]
_log = logging.getLogger(__name__)


def measure(
    action: Action[ValidateInputs],
    workspace: Workspace,
    stages: Stages,
    file_digests: FileDigests,
    always: bool = False,
) -> tuple[Json, dict[str, bytes]]:
    """Run a package, time it, and locate its failures.

    Args:
        file_digests: digests of the package's files, valid while the files don't change.
        always: make every call, even if the store has its outcome.

    Returns:
        The record, which extends `Validation.to_json`, and by name the files that reproduce the
        failures. The store keeps the record only if nothing failed and nothing was left out: a
        failure may have been an accident, and a larger budget deserves another run.
    """
    budget = Budget(action.inputs.config.validation.budget)
    with guard_sources(list(action.inputs.sources.values()), workspace.store):
        with stages.stage("load"):
            subject = Subject.load(action, workspace)
            subject.anew = always
        features = list(call_all("measuring", subject, stages))
        record, validation, shown = _measure(
            subject, stages, budget, features, file_digests
        )
    if validation.ok and validation.is_complete:
        _keep(subject, record, validation, features, stages)
    return record, shown


def _measure(
    subject: Subject,
    stages: Stages,
    budget: Budget,
    features: Sequence[Measuring],
    file_digests: FileDigests,
) -> tuple[dict[str, Any], Validation, dict[str, bytes]]:
    """Return the record, its validation, and the files that reproduce the failures."""
    action, workspace = subject.action, subject.workspace
    crash_log = CrashLog(workspace.logs, str(action.package), subject.settings.timeout)
    opened_by = (feature.open_lane for feature in features)
    open_lane: OpenLane = next(filter(None, opened_by), Lane)
    with guarded(crash_log.guard), unlocked():
        with stages.stage("run"), timed_calls(stages.step):
            running = budget.share(1 - OF_LOCATING)
            validation = _run(subject, crash_log, features, running, open_lane)
        opened = PackageFiles.of(subject.pte, subject.ptds)
        gc.collect()  # frees loaded packages, whose backends hold weights of their own
        measurement = Measurement(
            subject, validation, opened, running, budget, open_lane
        )
        for feature in features:
            feature.after_run(measurement)
        check_files(subject.folder, subject.key["files"], file_digests)
        for feature in features:
            feature.add_verdicts(measurement)
    _note_references(validation, subject)
    crash_log.clear()
    record = _make_record(subject, validation)
    for method in record["methods"]:
        method.update(measurement.method_facts.get(method["method"], {}))
    return record, validation, measurement.shown


def _run(
    subject: Subject,
    crash_log: CrashLog,
    features: Sequence[Measuring],
    budget: Budget,
    open_lane: OpenLane,
) -> Validation:
    """Validate the package against its programs, and its quantized methods against theirs."""
    key, read = subject.key, subject.workspace.store.read
    config, metadata = subject.action.inputs.config, subject.manifest.get("metadata")
    facts = {"constant_methods": config.constant_methods, "metadata": metadata}
    constants = all_constants(facts)
    quantized = subject.quantized
    keepers = [feature for feature in features if feature.keeps_calls]
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
        partial(_keep_call, keepers) if keepers else None,
        {name: method.program for name, method in quantized.items()},
        crash_log.crashes(),
        budget,
        subject.asked,
        subject.describe_instruction,
        {name: method.divergence for name, method in quantized.items()},
        subject.narrowed,
        subject.without_examples,
        subject.listed_shapes,
        open_lane,
        [feature.watch_call for feature in features if feature.watches_calls],
    )


def _note_references(validation: Validation, subject: Subject) -> None:
    """Mark references as "not run" if no installed feature can compare with them."""
    if has_feature("references"):
        return
    for result in validation.methods:
        planned = subject.key["programs"].get(result.method, {})
        if subject.validates(result.method) and {"reference", "golden"} & {*planned}:
            result.reference = {
                "verdict": "not run",
                "reason": 'this installation has no feature "references"',
                "compared": [],
                "calls": 0,
                "max_abs": None,
                "of_limit": None,
                "skipped": [],
            }


def _keep_call(keepers: Sequence[Measuring], *call: Any) -> None:
    for keeper in keepers:
        keeper.keep_call(*call)


def _make_record(subject: Subject, validation: Validation) -> dict[str, Any]:
    """Return the record of a validation, with the facts of the manifest that reports show.

    Source lines are those at the time of export.
    """
    record: dict[str, Any] = validation.to_json()
    for method in record["methods"]:
        method.update(culprits=[], culprit_notes=[])  # filled when a failure is located
    methods = subject.methods
    delegation = {}
    for name, counts in _select_facts(methods, "delegation").items():
        if name in subject.programs:
            delegation[name] = add_source_lines(
                counts, subject.programs[name], subject.workspace.root
            )
    return {
        **record,
        "package": subject.action.package,
        "files": subject.key["files"],
        "processor": _describe_processor(),
        **(
            {"only": subject.key["only"].split("+")}
            if subject.asked is not None
            else {}
        ),
        **_describe_common_state(subject),
        "delegation": delegation,
        "left_float": _select_facts(methods, "left_float"),
        "quantization": _select_facts(methods, "quantization"),
        "narrowed": _trace_facts(subject, "narrowed"),
        "warnings": _trace_facts(subject, "warnings"),
        "facts": _select_facts(methods, "facts"),
        "operators": subject.manifest.get("operators", []),
        "sizes": {
            n: file["size"] for n, file in subject.manifest.get("files", {}).items()
        },
    }


def _select_facts(methods: Mapping[str, Any], fact: str) -> dict[str, Any]:
    """Return one fact of the manifest by method, for the methods that have it."""
    return {name: facts[fact] for name, facts in methods.items() if fact in facts}


def _trace_facts(subject: Subject, fact: str) -> dict[str, Any]:
    """Return a fact's records by method, completed with operators and source lines."""
    traced = {}
    for name, records in _select_facts(subject.methods, fact).items():
        if name in subject.programs:
            traced[name] = trace_operators(
                records, subject.programs[name], subject.workspace.root
            )
    return traced


def _describe_processor() -> str:
    """Return the processor and the number of usable cores.

    Latencies are compared only if both are the same.
    """
    name = cpu_fields().get("model name") or platform.processor() or platform.machine()
    return f"{' '.join(name.split())}, {plural(usable_cores(), 'core')}"


def _describe_common_state(subject: Subject) -> dict[str, Any]:
    """Return which methods use the same buffers and whether they share them; empty if none do."""
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
    features: Sequence[Measuring],
    stages: Stages,
) -> None:
    """Store the record, with the additions of features."""
    workspace, store = subject.workspace, subject.workspace.store
    blobs: list[digest.Digest] = []
    for feature in features:
        blobs += feature.before_keeping(record, validation)
    inputs = subject.action.inputs
    quotes: dict[str, Any] = {"sources": inputs.traced}
    for lines in call_all("find_quotes", record, inputs, workspace):
        quotes |= lines
    kept = {**record, "quotes": quotes}
    blob = store.put(record_bytes(kept, sort_keys=False))
    store.put_result(
        subject.key,
        {"record": blob, "blobs": [blob, *blobs]},
        stages.total,
        stages.seconds(),
        stages.peak,
    )
