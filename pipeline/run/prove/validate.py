"""Validates a package: measures it, holds it to its gates, and reports.

Measuring runs the package, which can take long. Its record is stored under a key without the gates,
so that a changed gate costs only milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.moments import call_all, find_code
from pipeline.plan.actions import Action
from pipeline.plan.kinds.validate import ValidateInputs
from pipeline.plan.shared_state import WHERE, describe_unsaid, says_sharing
from pipeline.report.failures import describe_failed, first_culprit
from pipeline.report.method_records import UNASKED
from pipeline.report.packages import describe_left_out
from pipeline.report.records import FORMAT, read_fitting, read_manifest
from pipeline.report.render import render_package
from pipeline.report.verdicts import PASSED, method_verdict, package_verdict
from pipeline.run.prove.judgement import Judgement
from pipeline.run.prove.measured import check_files, find_measured
from pipeline.run.stages import Stages
from pipeline.store import digest
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError
from pipeline.store.file_digests import FileDigests
from pipeline.store.files import CONTENTS, REPORT, record_bytes
from pipeline.store.workspace import Workspace

Json = Mapping[str, Any]


def validate(
    action: Action[ValidateInputs],
    workspace: Workspace,
    stages: Stages,
    deliver: Callable[[Json], object],
    always: bool = False,
) -> None:
    """Run an installed package against its programs, and deliver a report in any case.

    Args:
        deliver: receives the result with the report's files.
        always: run the package even if the store has a measurement.

    Raises:
        PipelineError: the package doesn't compute the same function as its programs, or fails a
            gate.
    """
    # A mistake in a baseline is found before any stage begins.
    stages.current = ""
    package, folder = str(action.package), workspace.package(str(action.package))
    key = action.key["measured"]
    # For this validation only: each file is hashed once, and again if it changed since.
    file_digests = FileDigests()
    check_files(folder, key["files"], file_digests)
    judges = list(call_all("judge", action, workspace))
    manifest = read_manifest(workspace, package)
    made_of = {name: planned["program"] for name, planned in key["programs"].items()}
    wrong = list(
        check_integrity(
            folder,
            manifest,
            package,
            made_of,
            action.inputs.config.constant_methods,
            file_digests,
        )
    )
    measured = None if always else find_measured(action, workspace)
    shown: dict[str, bytes] = {}
    if measured is None:
        from pipeline.run.prove.measure import measure  # imports torch

        measured, shown = measure(action, workspace, stages, file_digests, always)
    with stages.stage("report"):
        judgements = [judge(manifest, measured) for judge in judges]
        record = _make_record(action, folder, manifest, measured, judgements, wrong)
        report = {
            REPORT: record_bytes(record, sort_keys=False),
            **render_package(workspace.root, record),
            **shown,
        }
        put = {name: workspace.store.put(data) for name, data in report.items()}
        if bundled := measured.get("bundle"):
            put[bundled["file"]] = bundled["digest"]
        facts = {
            "ok": record["ok"],
            "verdict": record["verdict"],
            "allow": record["allow"],
            "methods": _verdicts_short_of_passed(record),
            # Whether it matches its source, so that its figures can become the baseline.
            "sound": not (wrong or measured["failures"]),
            "measured": digest.hash_json(key),
            "complete": not any(
                {*method["left_out"]} - {UNASKED} for method in measured["methods"]
            ),
            **({"only": measured["only"]} if "only" in measured else {}),
        }
        for judgement in judgements:
            facts |= judgement.facts
        result = {"files": put, "facts": facts}
        if record["ok"] and facts["complete"]:
            workspace.store.put_result(
                action.key, result, stages.total, stages.seconds(), stages.peak
            )
        else:  # the workspace keeps the key, for `doit plan` to show what changed
            facts["key"] = action.key
        if not facts["complete"]:
            facts["budget"] = action.inputs.config.validation.budget
            facts["left_out"] = describe_left_out(record)
        deliver(result)
    if record["failures"]:
        stages.current = ""  # all stages ended: the package itself failed
        raise PipelineError(
            describe_failed(record, folder.name), *first_culprit(record)
        )


def _verdicts_short_of_passed(record: Json) -> dict[str, str]:
    """Return, by name, the verdict of each requested method that has not passed."""
    requested = record.get("only")
    verdicts = {m["method"]: method_verdict(m) for m in record["methods"]}
    return {
        name: verdict
        for name, verdict in verdicts.items()
        if verdict != PASSED and (requested is None or name in requested)
    }


def check_integrity(
    folder: Path,
    manifest: Json | None,
    package: str,
    programs: Mapping[str, Digest],
    constant_methods: Mapping[str, object],
    file_digests: FileDigests,
) -> Iterator[str]:
    """Check a package against its manifest and yield a sentence for each mistake.

    Every file that the manifest names is hashed, unless `file_digests` already has its digest.

    Args:
        programs: by method, the digest of the source's current program.
        constant_methods: those of the config.
    """
    if manifest is None:
        yield "manifest.json is missing, or can't be read"
        return
    if manifest["package"] != package:
        yield f"the manifest belongs to package '{manifest['package']}'"
    for name, file in sorted(manifest["files"].items()):
        yield from _check_file(folder / name, file, file_digests)
    if not any(name.endswith(".pte") for name in manifest["files"]):
        yield "the manifest names no .pte file"
    named = {name: facts["program"] for name, facts in manifest["methods"].items()}
    for name in sorted(named.keys() | programs.keys()):
        if name not in named:
            yield f"{name}: the manifest lacks this method of the source"
        elif name not in programs:
            yield f"{name}: the manifest has this method, but the source does not"
        elif named[name] != programs[name]:
            yield f"{name}: the manifest names a program other than the source's"
    constants = manifest["constant_methods"]
    for name in sorted(constants.keys() | constant_methods.keys()):
        ours = constant_methods.get(name)
        if constants.get(name) != ours or type(constants.get(name)) is not type(ours):
            yield f"{name}: the manifest says {constants.get(name)!r}, the config {ours!r}"


def _check_file(path: Path, facts: Json, file_digests: FileDigests) -> Iterator[str]:
    try:
        size, content = path.stat().st_size, file_digests.hash(path)
    except OSError as error:
        yield f"{path.name}: {error.strerror}, but the manifest names it"
        return
    if size != facts["size"]:
        yield f"{path.name} has {size} bytes, {facts['size']} in the manifest"
    elif content != facts["digest"]:
        yield f"{path.name} does not match the manifest's digest"


def _make_record(
    action: Action[ValidateInputs],
    folder: Path,
    manifest: Json | None,
    measured: Json,
    judgements: Sequence[Judgement],
    wrong: list[str],
) -> dict[str, Any]:
    """Return the record of the report; `wrong` lists how the package's files are inconsistent."""
    contents, places = read_fitting(folder / CONTENTS), action.inputs.places
    unsaid = _find_unsaid_sharing(action.inputs, measured)
    failures = [*wrong, *measured["failures"], *unsaid]
    for judgement in judgements:
        failures += judgement.failures
    ok = not failures
    record = {
        "format": FORMAT,
        "model": action.model,
        "target": (manifest or {}).get("target") or "",
        **measured,
        "ok": ok,
        "verdict": "",  # set below, from the verdicts of methods
        "allow": action.key["held_to"]["allow"],
        "failures": failures,
        "portable": [
            name
            for name, facts in (manifest or {}).get("methods", {}).items()
            if not facts["lowering"].get("partitioners")
        ],
        "gates": [],
        "baseline": None,
        "contents": contents,
        "places": places,
        **action.inputs.record,
        "sources": action.inputs.quoted,
    }
    for judgement in judgements:
        record |= judgement.record
    record["codes"] = [find_code(failure, "validate") for failure in failures]
    record["verdict"] = package_verdict(record)
    return record


def _find_unsaid_sharing(inputs: ValidateInputs, measured: Json) -> list[str]:
    """Return a failure if methods have common state and the config doesn't say if they share it.

    Planning can't always see common state: a model's custom operators can change buffers.
    """
    if says_sharing(inputs.config) or "common_state" not in measured:
        return []
    return [
        f"{WHERE}: {'; '.join(describe_unsaid(measured['common_state']['buffers']))}"
    ]
