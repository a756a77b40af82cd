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

from executorch.exir import EdgeProgramManager
from torch.export import ExportedProgram

from pipeline.backends import Backend, edge_operators, make_passes
from pipeline.backends.workspace_files import located
from pipeline.compile.calibration import Batches, check_batches
from pipeline.compile.control_flow import left_float
from pipeline.compile.emit import emit, named_data_of
from pipeline.compile.emit_trace import recording
from pipeline.compile.etrecord import current_lines, record
from pipeline.compile.inspect.constants import constants_of
from pipeline.compile.inspect.delegation import (
    Places,
    count_delegation,
    handle_positions,
    origins_of,
)
from pipeline.compile.inspect.segments import stretches
from pipeline.compile.lower import edge_for, lower
from pipeline.compile.module_filter import confined_partitioners
from pipeline.compile.objects import make_object
from pipeline.compile.quantize import quantize
from pipeline.config.load import MethodConfig
from pipeline.config.passes import load_passes, source_files
from pipeline.plan.actions import CALIBRATION, Action
from pipeline.program.archive import load_example_inputs, load_program, save_programs
from pipeline.program.input_files import check_file, read_planned
from pipeline.program.inputs import InputSet, as_input_sets, load_inputs
from pipeline.program.method_spec import changes_of, spec_of
from pipeline.program.sources import MethodSource
from pipeline.program.spec_records import spec_to_json
from pipeline.run.stages import Stages
from pipeline.store import digest
from pipeline.store.errors import SourceError
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import Workspace

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
        result = {
            "program": file.digest,
            "blobs": [file.digest],
            "origins": origins_of(quantized, program),
        }
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
            partial(read_planned, workspace.root, name, content, program)
            for name, content in zip(files, contents, strict=True)
        ]
        return Batches(loads, spec.batches)
    if source.batches:
        return Batches([partial(_of_record, store, b) for b in source.batches], spec.batches)
    return load_examples(source, store)[: spec.batches]


def _of_record(store: Store, blob: digest.Digest) -> list[InputSet]:
    return load_inputs(store.read(blob))


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
                    check_file(root, path, content)

    check()
    try:
        yield
    finally:  # whatever went wrong, this is why
        check()


def _quantized(action: Action, store: Store) -> tuple[ExportedProgram, list[dict[str, int]]]:
    """The program that a quantize action made, and where its nodes come from. Raises
    MissingBlobError."""
    result = store.result(action.digest)
    if result is None:
        raise MissingBlobError(f"the quantized program of {action.method} is not in the store")
    return load_quantized(result, store), result["origins"]


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
        Python runtime runs the debug handles with the places of their nodes in the program, of each
        method which instruction gives which node of the program that was lowered, of quantized ones
        with control flow how many operators in it stayed in floating point, what the constants of
        each are called (`constants_of`), and, where it is wanted, the entries of an ETRecord.

    Raises:
        SourceError: a program can't be read, or is not the one that was planned.
    """
    methods: Mapping[str, MethodSource] = action.where["sources"]
    configs, settings = action.where["configs"], action.where["emit"]
    store = workspace.store
    quantizes = action.where["quantizes"]
    with stages.stage("load"), reading(methods.values()):
        quantized = {name: _quantized(quantizes[name], store) for name in quantizes}
        programs = {
            name: quantized[name][0] if name in quantized else load_method(source, store)
            for name, source in methods.items()
        }
        places = {
            name: Places(program, quantized[name][1] if name in quantized else None)
            for name, program in programs.items()
        }
    with stages.stage("lower"), _reading_files(action, configs, workspace.root):
        specs = {n: spec_of(program, again=n in quantizes) for n, program in programs.items()}
        floats = {name: left_float(programs[name]) for name in methods if name in quantizes}
        kept = None if always else store
        lowered = lower_methods(programs, configs, workspace.root, kept, settings.etrecord)
        delegation = {
            name: count_delegation(
                lowered.exported_program(name),
                {b.kernels: b.backend_id for b in _backends({name: configs[name]}) if b.kernels},
                places[name],
                _left_without_partitioner(configs[name]),
            ).to_json()
            for name in methods
        }
        signatures = {
            name: spec_to_json(
                replace(spec, changes=tuple(changes_of(lowered.exported_program(name))))
            )
            for name, spec in specs.items()
        }
        for name in methods:
            kernels = {
                b.kernels: b.backend_id for b in _backends({name: configs[name]}) if b.kernels
            }
            row = stretches(lowered.exported_program(name), kernels)
            delegation[name]["stretches"] = [stretch.to_json() for stretch in row]
        in_python = {b.backend_id for b in _backends(configs) if b.make_runtime is not None}
        handles = {
            name: handle_positions(lowered.exported_program(name), places[name], in_python)
            for name in methods
        }
        constants = {
            name: constants_of(programs[name], lowered.exported_program(name)) for name in methods
        }
    with stages.stage("emit"):
        named = {name: named_data_of(lowered.exported_program(name)) for name in methods}
        with recording() as emission:
            emitted = emit(lowered, settings, load_passes(settings.passes, workspace.root))
        instructions = {
            name: emission.instructions(name, program).to_json()
            for name, program in programs.items()
        }
        _check_passes(action.key.get("passes", {}), workspace.root)
    with stages.stage("store"):
        compiled = make_object(emitted, store, named if len(named) > 1 else {})
        result = {
            "object": compiled.to_json(),
            "blobs": sorted({blob.digest for blob in compiled.blobs()}),
            "delegation": delegation,
            "signatures": signatures,
            "debug_handles": {name: own for name, own in handles.items() if own},
            "instructions": instructions,
            "left_float": {name: number for name, number in floats.items() if number},
            "constants": constants,
        }
        if settings.etrecord:
            lines = _lines(methods, programs, quantizes, store)
            result["etrecord"] = found = record(emitted, store, lines)
            own = {blob["digest"] for blob in found.values()}
            result["blobs"] = sorted({*result["blobs"], *own})
        store.put_result(action.key, result, stages.total)
    return result


def lower_methods(
    programs: Mapping[str, ExportedProgram],
    configs: Mapping[str, MethodConfig],
    root: Path,
    store: Store | None,
    etrecord: bool = False,
) -> EdgeProgramManager:
    """The methods of one unit, lowered as their configs ask.

    Args:
        store: where results of preprocessing are looked up and kept.
        etrecord: whether what an ETRecord needs is kept.
    """
    partitioners = {
        name: confined_partitioners(config.located(root), config.modules)
        for name, config in configs.items()
    }
    return lower(
        programs,
        partitioners,
        store=store,
        edge=edge_for(next(iter(configs.values())).edge, _backends(configs)),
        edge_operators=edge_operators(_backends(configs)),
        passes={
            name: [*load_passes(config.edge.passes, root), *make_passes(config.located(root))]
            for name, config in configs.items()
        },
        etrecord=etrecord,
    )


def _lines(
    methods: Mapping[str, MethodSource],
    programs: Mapping[str, ExportedProgram],
    quantizes: Mapping[str, Action],
    store: Store,
) -> dict[str, dict[str, str]]:
    """Of each quantized method, the lines that its nodes stand on by now."""
    with reading(methods.values()):
        return {n: current_lines(programs[n], load_method(methods[n], store)) for n in quantizes}


def _check_passes(planned: Mapping[str, Any], root: Path) -> None:
    for reference, files in planned.items():
        now = {name: digest.of_file(path) for name, path in source_files(reference, root).items()}
        if now != files:
            raise SourceError(f"pass {reference}: changed while the build ran; run again")


def _backends(configs: Mapping[str, MethodConfig]) -> Iterator[Backend]:
    for config in configs.values():
        yield from (spec.backend for spec in config.partitioners)


def _left_without_partitioner(config: MethodConfig) -> str:
    """Why operators are left of which no partitioner said anything."""
    by_passes = [spec.name for spec in config.partitioners if spec.backend.make_passes is not None]
    if by_passes:
        return f"the passes of {', '.join(by_passes)} made no kernel of it"
    return "" if config.partitioners else "portable only: the config says so"


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
