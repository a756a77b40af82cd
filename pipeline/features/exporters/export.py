"""Runs a model's exporter, and keeps its programs and inputs in the store.

The exporter runs in a separate process. Its inputs are the files and modules that it declares and
imports there (`declared_reads`) or, with the feature `tracing`, everything that it looked at; the
key of the action contains their state.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import linecache
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

from pipeline.features import exporters
from pipeline.features.exporters.announced_deaths import (
    Announcements,
    run_announced,
)
from pipeline.features.exporters.drafts import drafting
from pipeline.features.exporters.early import check_arities, check_syntax
from pipeline.features.exporters.exporter import call_export_methods
from pipeline.features.exporters.exporter_imports import import_afresh, importing_for
from pipeline.features.exporters.handover import Handover, handing_over
from pipeline.features.exporters.methods import hand_over_all, hand_over_stream
from pipeline.features.exporters.missing_operator import explain_missing
from pipeline.features.exporters.neutral import neutral_process
from pipeline.features.exporters.quoted_lines import keep_quoted_lines
from pipeline.moments import call_all, find_features, load
from pipeline.plan.actions import Action
from pipeline.plan.keys import program_key
from pipeline.plan.kinds.export import ExportInputs, export_action, reads_key
from pipeline.plan.kinds.parts import Key
from pipeline.plan.reads import MOST_RECORDS, Reads, parse_records
from pipeline.program.archive import save_programs
from pipeline.program.archive_facts import describe_archive
from pipeline.program.fresh_imports import FromText
from pipeline.program.import_errors import explain_hidden
from pipeline.program.inputs import InputSet, save_inputs
from pipeline.program.operator_libraries import load_libraries
from pipeline.program.workspace_modules import load_file, own_name
from pipeline.run.build.load import check_libraries
from pipeline.run.export.declared_reads import DeclaredReads
from pipeline.run.imports import keeping_all
from pipeline.run.isolated import ForkWatch, run_isolated
from pipeline.run.stages import IMPORT, Stages
from pipeline.store import digest
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError, SourceError
from pipeline.store.remedies import explain_error
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace


def export(
    action: Action[ExportInputs],
    workspace: Workspace,
    stages: Stages,
) -> None:
    """Run the exporter and record the result under a key of the inputs that it really read.

    Raises:
        SourceError: the exporter raised, returned anything but named programs and matching inputs,
            read undeclared inputs, or a file that it read changed meanwhile.
    """
    root, store = workspace.root, workspace.store
    path = root / action.inputs.path
    text = path.read_bytes()
    content = digest.hash_bytes(text)
    fetch_sources(workspace, action.inputs, stages)
    inputs = _watch_exporter(workspace, action.inputs)
    with handing_over(store) as handover:
        try:
            exported = run_exporter(action, root, text, handover, stages, inputs.watch)
        except PipelineError as error:
            reads = inputs.find_looked_at(error)
            _record(store, reads_key(action.model, content), reads)
            raise
        with stages.stage("store"):
            if digest.hash_file(path) != content:
                raise SourceError(
                    f"{path.parent.name}/{path.name}: changed while the exporter ran; run again"
                )
            check_libraries(action, workspace)
            reads = inputs.find(**exported["asked"])
            result = store_exported(exported, handover, store)
            export_inputs = replace(
                action.inputs,
                source=content,
                reads=inputs.finder.find(reads, inputs.declared),
                distributions=reads.distributions,
                unfollowed=reads.unfollowed,
            )
            real = export_action(export_inputs)
            store.put_result(
                real.key, result, stages.total, stages.seconds(), stages.peak
            )
            _record(store, reads_key(action.model, content), reads, real.digest)


def fetch_sources(workspace: Workspace, inputs: ExportInputs, stages: Stages) -> None:
    """Let features fetch remote data that an exporter reads. Raises SourceError."""
    for _ in call_all("fetch_sources", workspace, inputs, stages):
        pass


def _watch_exporter(workspace: Workspace, inputs: ExportInputs) -> DeclaredReads:
    """Return the watch that learns an exporter's inputs: a feature's if there is one."""
    watches = call_all("watch_exporter", workspace, inputs)
    return next(watches, None) or DeclaredReads(workspace, inputs)


def run_exporter(
    action: Action[ExportInputs],
    root: Path,
    text: bytes,
    handover: Handover,
    stages: Stages,
    watch: ForkWatch | None = None,
) -> dict[str, Any]:
    """Run an exporter with this text in a separate process, observed by a watch.

    Returns the facts that it handed over: the arguments of `store_exported` and, as `asked`, of
    `DeclaredReads.find`.
    """
    path = root / action.inputs.path
    describe = partial(_explain, root, action.model)
    with stages.stage("run the exporter"):
        check_syntax(path, text, describe)
    with stages.stage(IMPORT), keeping_all():
        _warm_up()
    prepare = partial(load_libraries, action.libraries, root)
    parameters = action.inputs.parameters
    surroundings = partial(_surround_exporter, root, path)

    def isolate(announcements: Announcements | None) -> dict[str, Any]:
        run = partial(_run, path, text, handover, parameters, prepare, announcements)
        exported: dict[str, Any] = run_isolated(
            run, watch, stages, describe, surroundings
        )
        return exported

    with stages.stage("run the exporter"):
        return run_announced(isolate, handover)


@contextmanager
def _surround_exporter(root: Path, path: Path) -> Iterator[None]:
    """Set up the environment common to all exporters in a process, before its imports."""
    _warm_up()
    with importing_for(root, path), neutral_process(root):
        yield


def _explain(root: Path, model: str, error: BaseException) -> str:
    """Describe the error that ended an exporter.

    Adds the command for a draft if torch suggests one.
    """
    text = explain_error(error, root=root)
    if "draft_export" in str(error):
        return f"{text}; `doit diagnose {model}` lists everything in it that torch.export rejects"
    return text


def run_drafts(action: Action[ExportInputs], root: Path, text: bytes) -> dict[str, Any]:
    """Run an exporter with this text in a separate process, drafting whatever can't be exported.

    Returns a model's record in the form of `diagnose.DIAGNOSIS`, without the model's name.
    """
    path = root / action.inputs.path
    with keeping_all():
        _warm_up()
    prepare = partial(load_libraries, action.libraries, root)
    run = partial(_draft, path, text, action.inputs.parameters, prepare)
    describe = partial(explain_error, root=root)
    surroundings = partial(_surround_exporter, root, path)
    record: dict[str, Any] = run_isolated(run, None, None, describe, surroundings)
    return record


def _draft(
    path: Path,
    text: bytes,
    parameters: Mapping[str, Any],
    prepare: Callable[[], None],
) -> dict[str, Any]:
    """Run an exporter with drafts in this process, which serves only it; return its record."""
    root = path.parents[1]
    import_afresh(path.parent)
    prepare()
    record: dict[str, Any] = {"exports": [], "error": ""}
    with drafting(root) as calls:
        try:
            with explaining_imports(path):
                returned = call_export_methods(load_exporter(path, text), parameters)
                if isinstance(returned, Iterator):
                    for _ in returned:
                        pass
        except Exception as error:
            record["error"] = explain_error(error, root=root)
    record["exports"] = calls
    if calls and calls[-1]["draft_error"]:
        record["error"] = ""  # the draft's error, which ended the exporter
    return record


def store_exported(
    exported: Mapping[str, Any], handover: Handover, store: Store
) -> dict[str, Any]:
    """Store the data that an exporter handed over; return the result of its action.

    The records of its programs are stored, too.
    """
    archive = handover.store_all(store, exported["handed"])
    path = store.blob_path(archive)
    facts = describe_archive(path, archive, is_own=True).programs
    for program in facts:
        store.put_result(program_key(program.program), program.parts)
    programs = {program.entry: program for program in facts}
    methods = [
        {
            **method,
            "program": programs[method["name"]].program,
            "names": programs[method["name"]].names,
            "calibration": digest.hash_json(method["batches"])
            if method["batches"]
            else None,
        }
        for method in exported["methods"]
    ]
    return {
        "archive": archive,
        "methods": methods,
        "constant_methods": exported["constants"],
        "warnings": exported["warnings"],
    }


def _record(store: Store, key: Key, reads: Reads, last: Digest | None = None) -> None:
    """Record the reads of an export in front of those of earlier, different runs.

    `last` is the action of a successful export.
    """
    entry = store.get_by_key(key)
    result = entry.result if entry else {}
    runs = [reads, *(run for run in parse_records(result) if run != reads)]
    record: dict[str, Any] = {"runs": [run.to_json() for run in runs[:MOST_RECORDS]]}
    if last is None:
        last = result.get("last")
    if last is not None:
        record["last"] = last
    store.put_result(key, record)


# Modules that torch imports only for symbolic sizes, 80 files, and for control flow.
_LATER = (
    "sympy.combinatorics",
    "sympy.tensor.tensor",
    "torch._dynamo.dce_extra_outputs",
    "torch._higher_order_ops.passes.inline_invoke_subgraph",
)


@cache
def _warm_up() -> None:
    """Export and save a small program and its inputs, to import what torch loads lazily.

    The imports then happen once for all forks, and none of these files counts as an exporter's
    input.
    """
    example = (torch.ones(1, 1),)
    program = torch.export.export(torch.nn.Linear(1, 1).requires_grad_(False), example)
    save_programs({"forward": program}, io.BytesIO())
    # The first decomposition in a process creates a lock in shared memory.
    program.run_decompositions({})
    save_inputs([InputSet(example, {}, "")])
    for name in _LATER:
        with suppress(ImportError):  # another release of torch
            importlib.import_module(name)
    packages = [exporters.__name__]
    for feature in find_features():
        if feature.record_references:
            load(feature.record_references)
            packages.append(feature.record_references.rpartition(".")[0])
    torch.compiler.list_backends()  # control flow searches all distributions once per process
    keep_quoted_lines(*packages)


def _run(
    path: Path,
    text: bytes,
    handover: Handover,
    parameters: Mapping[str, Any],
    prepare: Callable[[], None],
    announcements: Announcements | None,
) -> dict[str, Any]:
    """Run an exporter in this process, which serves only it, and hand over its programs and inputs.

    Returns the result of `run_exporter`. `prepare` is called first; `announcements` is as in
    `hand_over_all`.
    """
    requests = import_afresh(path.parent)
    prepare()
    root = path.parents[1]
    destination = handover, root, announcements
    with explaining_imports(path):
        module = load_exporter(path, text)
        check_arities(module)
        returned = call_export_methods(module, parameters)
        if isinstance(returned, Iterator):
            records = hand_over_stream(module, returned, parameters, *destination)
    if not isinstance(returned, Iterator):
        programs, references = returned
        records = hand_over_all(module, programs, references, parameters, *destination)
    return {**records, "handed": handover.to_json(), "asked": requests.to_json()}


@contextmanager
def explaining_imports(path: Path) -> Iterator[None]:
    """Add to errors which operator isn't registered, or which file an import didn't mean."""
    try:
        yield
    except (AttributeError, ImportError) as error:
        hint = explain_missing(error) if isinstance(error, AttributeError) else ""
        if hint:
            raise SourceError(f"{path.parent.name}/{path.name}: {hint}") from error
        if hint := explain_hidden(error, path.parent):
            error.add_note(hint)
        raise


# The code for a `<model>.yaml`, which declares what a feature exports.
_STAND_IN = b"""\
from pte_pipeline.hugging_face import read_source

export_methods = read_source(__file__)
"""


def load_exporter(path: Path, text: bytes) -> ModuleType:
    name = own_name(path.parent.name, path)
    if path.suffix == ".yaml":
        text = _STAND_IN
    return load_file(path, name, _SourceLoader(name, path, text))


class _SourceLoader(FromText):
    """Loads an exporter from the text that its key contains, which stack traces quote, too."""

    def __init__(self, name: str, path: Path, text: bytes) -> None:
        super().__init__(name, str(path))
        self._text = text

    def get_data(self, path: str) -> bytes:
        return self._text if path == self.path else super().get_data(path)

    def get_code(self, fullname: str) -> CodeType:
        lines = importlib.util.decode_source(self._text).splitlines(keepends=True)
        linecache.cache[self.path] = (len(self._text), None, lines, self.path)
        return super().get_code(fullname)
