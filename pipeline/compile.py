"""Quantize and compile: a method from its program to a quantized one, and one method, or one joint
group, to an object in the store."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from pipeline import digest
from pipeline.actions import CALIBRATION, Action
from pipeline.backends import Backend, edge_operators, make_passes
from pipeline.backends.workspace_files import located
from pipeline.calibration import Batches, check_batches, read_file
from pipeline.config import MethodConfig
from pipeline.confine import confined_partitioners
from pipeline.control_flow import left_float
from pipeline.delegation import count_delegation, handle_positions
from pipeline.emission import emit, named_data_of
from pipeline.errors import SourceError
from pipeline.inputs import InputSet, as_input_sets, load_inputs
from pipeline.lowering import edge_for, lower
from pipeline.objects import make_object
from pipeline.passes import load_passes, source_files
from pipeline.programs import load_example_inputs, load_program, save_programs
from pipeline.quantize import quantize
from pipeline.sources import MethodSource
from pipeline.spec_records import spec_to_json
from pipeline.specs import changes_of, spec_of
from pipeline.stages import Stages
from pipeline.store import MissingBlobError, Store
from pipeline.workspace import Workspace

_log = logging.getLogger(__name__)
_ENTRY = "forward"  # what the archive of a quantized program calls it


def quantize_method(action: Action, workspace: Workspace, stages: Stages) -> dict[str, Any]:
    """Quantizes the method of an action and records the result: an archive of the quantized
    program, which is lowered to the same bytes as the one in memory would be.

    Raises:
        SourceError: the program or a calibration file can't be read, or is not what was planned.
        PipelineError: the inputs don't fit the program, or the config doesn't.
    """
    source: MethodSource = action.where["source"]
    config, store, method = action.where["config"], workspace.store, str(action.method)
    spec = located(config.quantize, workspace.root)
    with stages.stage("load"), reading([source]):
        program = load_method(source, store)
        batches = _batches(action, workspace, program)
        check_batches(program, method, batches) if spec.calibrates else None
    with stages.stage("quantize"), _reading_files(action, {method: config}, workspace.root):
        quantized = quantize(program, spec, batches, stages.tell)
    if floats := left_float(quantized):
        _log.warning(
            "%s: its control flow is not quantized: %d of its operators compute in floating point",
            method,
            floats,
        )
    with stages.stage("store"):
        with store.writer() as file:
            save_programs({_ENTRY: quantized}, file)
        result = {"program": file.digest, "blobs": [file.digest]}
        store.put_result(action.key, result, stages.total)
    return result


def _batches(action: Action, workspace: Workspace, program: ExportedProgram) -> Sequence[InputSet]:
    """What a static quantization observes; nothing for another one."""
    source: MethodSource = action.where["source"]
    spec, store = action.where["config"].quantize, workspace.store
    if not spec.calibrates:
        return []
    files = action.where["config"].files.get(CALIBRATION, ())
    if files:
        contents = action.key["methods"][str(action.method)]["calibration"]
        loads = [
            partial(_of_file, workspace.root, name, content, program)
            for name, content in zip(files, contents, strict=True)
        ]
        return Batches(loads, spec.batches)
    if source.batches:
        return Batches([partial(_of_record, store, b) for b in source.batches], spec.batches)
    return load_examples(source, store)[: spec.batches]


def _of_record(store: Store, blob: digest.Digest) -> list[InputSet]:
    return load_inputs(store.read(blob))


def _of_file(
    root: Path, name: str, content: digest.Digest, program: ExportedProgram
) -> list[InputSet]:
    _check_file(root, name, content)
    batches = read_file(root / name, name, program)
    _check_file(root, name, content)
    return batches


def _check_file(root: Path, name: str, content: digest.Digest) -> None:
    if not (root / name).is_file() or digest.of_file(root / name) != content:
        raise SourceError(f"{name}: changed while the build ran; run again")


@contextmanager
def _reading_files(
    action: Action, configs: Mapping[str, MethodConfig], root: Path
) -> Iterator[None]:
    """The files that the options of these methods name are those that were planned.

    Raises:
        SourceError: one of them is another by now.
    """

    def check() -> None:
        for name, config in configs.items():
            planned = action.key["methods"][name].get("files", {})
            for place, contents in planned.items():
                for path, content in zip(config.files[place], contents, strict=True):
                    _check_file(root, path, content)

    check()
    try:
        yield
    finally:  # whatever went wrong, this is why
        check()


def _quantized(action: Action, store: Store) -> ExportedProgram:
    """The program that a quantize action made. Raises MissingBlobError."""
    result = store.result(action.digest)
    if result is None:
        raise MissingBlobError(f"the quantized program of {action.method} is not in the store")
    return load_quantized(result, store)


def load_quantized(result: Mapping[str, Any], store: Store) -> ExportedProgram:
    """The program of a quantize action's result. Raises MissingBlobError."""
    return load_program(store.verified_path(result["program"]), _ENTRY)


def compile_unit(
    action: Action, workspace: Workspace, stages: Stages, always: bool = False
) -> dict[str, Any]:
    """Compiles the methods of one action and records the result.

    Args:
        always: preprocesses every partition, whatever the store holds.

    Returns:
        The action's result: the object, its blobs, the delegation of each method, of those that a
        Python runtime runs the debug handles with the places of their nodes in the program, and of
        quantized ones with control flow how many operators in it stayed in floating point.

    Raises:
        SourceError: a program can't be read, or is not the one that was planned.
    """
    methods: Mapping[str, MethodSource] = action.where["sources"]
    configs, settings = action.where["configs"], action.where["emit"]
    store = workspace.store
    quantizes = action.where["quantizes"]
    with stages.stage("load"), reading(methods.values()):
        programs = {
            name: _quantized(quantizes[name], store)
            if name in quantizes
            else load_method(source, store)
            for name, source in methods.items()
        }
    with stages.stage("lower"), _reading_files(action, configs, workspace.root):
        partitioners = {
            name: confined_partitioners(config.located(workspace.root), config.modules)
            for name, config in configs.items()
        }
        specs = {n: spec_of(program, again=n in quantizes) for n, program in programs.items()}
        floats = {name: left_float(programs[name]) for name in methods if name in quantizes}
        lowered = lower(
            programs,
            partitioners,
            store=None if always else store,
            edge=edge_for(next(iter(configs.values())).edge, _backends(configs)),
            edge_operators=edge_operators(_backends(configs)),
            passes={
                name: [
                    *load_passes(config.edge.passes, workspace.root),
                    *make_passes(config.located(workspace.root)),
                ]
                for name, config in configs.items()
            },
        )
        delegation = {
            name: count_delegation(
                lowered.exported_program(name),
                {b.kernels: b.backend_id for b in _backends({name: configs[name]}) if b.kernels},
            ).to_json()
            for name in methods
        }
        signatures = {
            name: spec_to_json(
                replace(spec, changes=tuple(changes_of(lowered.exported_program(name))))
            )
            for name, spec in specs.items()
        }
        in_python = {b.backend_id for b in _backends(configs) if b.make_runtime is not None}
        handles = {
            # Of a quantized program nobody knows the lines that its nodes stand on by now.
            name: handle_positions(lowered.exported_program(name), programs[name], in_python)
            for name in methods
            if name not in quantizes
        }
    with stages.stage("emit"):
        named = {name: named_data_of(lowered.exported_program(name)) for name in methods}
        emitted = emit(lowered, settings, load_passes(settings.passes, workspace.root))
        _check_passes(action.key.get("passes", {}), workspace.root)
    with stages.stage("store"):
        compiled = make_object(emitted, store, named if len(named) > 1 else {})
        result = {
            "object": compiled.to_json(),
            "blobs": sorted({blob.digest for blob in compiled.blobs()}),
            "delegation": delegation,
            "signatures": signatures,
            "debug_handles": {name: own for name, own in handles.items() if own},
            "left_float": {name: number for name, number in floats.items() if number},
        }
        store.put_result(action.key, result, stages.total)
    return result


def _check_passes(planned: Mapping[str, Any], root: Path) -> None:
    for reference, files in planned.items():
        now = {name: digest.of_file(path) for name, path in source_files(reference, root).items()}
        if now != files:
            raise SourceError(f"pass {reference}: changed while the build ran; run again")


def _backends(configs: Mapping[str, MethodConfig]) -> Iterator[Backend]:
    for config in configs.values():
        yield from (spec.backend for spec in config.partitioners)


def load_method(source: MethodSource, store: Store) -> ExportedProgram:
    """The program of a method.

    Raises:
        SourceError: a file of the user's can't be read.
        MissingBlobError: the archive of an exporter is no longer whole.
    """
    if source.exported:
        archive = store.verified_path(store.blob_of(source.archive))
        return load_program(archive, source.entry)
    return load_program(source.archive, source.entry)


@contextmanager
def reading(methods: Iterable[MethodSource]) -> Iterator[None]:
    """What is read of users' archives within it is what was planned.

    Raises:
        SourceError: one of them is another file by now.
    """
    contents = {source.archive: source.content for source in methods if not source.exported}
    before = {path: _stamp(path) for path in contents}
    try:
        yield
    finally:  # whatever went wrong, this is why
        for path, content in contents.items():
            # The stamp tells a file that was exchanged and put back while it was read.
            unchanged = before[path] is not None and before[path] == _stamp(path)
            if not unchanged or digest.of_file(path) != content:
                raise SourceError(f"{path.name}: changed while the build ran; run again")


def _stamp(path: Path) -> list[int] | None:
    return digest.stamp(path) if path.exists() else None


def load_examples(source: MethodSource, store: Store) -> list[InputSet]:
    """The example inputs of a method, from its archive or from what its exporter gave."""
    if source.exported:
        return load_inputs(store.read(source.examples)) if source.examples else []
    inputs = load_example_inputs(source.archive, source.entry)
    return as_input_sets([inputs], "example") if inputs else []
