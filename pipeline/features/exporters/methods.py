"""Hands over the methods of an exporter with their inputs.

Those of a dict are handed over all at once, those of a generator one at a time, so that memory
never holds a large model several times.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from pipeline.features.exporters.announced_deaths import Announcements
from pipeline.features.exporters.exporter import (
    Reference,
    call_constants,
    call_inputs,
    check_eager,
    check_names,
    find_references,
    parse_examples,
    parse_inputs,
    parse_yielded,
)
from pipeline.features.exporters.handover import Handover
from pipeline.features.exporters.renamed_state import find_renamed_state, list_buffers
from pipeline.features.exporters.shared_members import sharing_members
from pipeline.moments import call_all
from pipeline.program.archive import save_programs
from pipeline.program.eager import describe_used_buffers
from pipeline.program.inputs import InputSet, save_inputs
from pipeline.program.random_operators import (
    describe_random_operators,
    find_random_operators,
)
from pipeline.store.digest import Digest

Json = dict[str, Any]
Programs = Mapping[str, ExportedProgram]
_END = object()


def hand_over_all(
    module: ModuleType,
    programs: Programs,
    exported_references: Mapping[str, Reference],
    parameters: Mapping[str, Any],
    handover: Handover,
    root: Path,
    announcements: Announcements | None = None,
) -> Json:
    """Hand over programs, their inputs and the constant methods; return their records.

    Args:
        exported_references: the references that came with the programs.
        root: the workspace.
        announcements: announces steps that may end this process, if it can't fork.
    """
    constants = call_constants(module, parameters, programs, handover.put)
    values = {
        name: call_inputs(module, "example", name, parameters) for name in programs
    }
    examples = parse_examples(module, programs, values)
    references = find_references(module, programs, exported_references, parameters)
    batches = {
        name: _put_calibration(module, name, program, parameters, handover)
        for name, program in programs.items()
    }
    buffers = {name: list_buffers(program) for name, program in programs.items()}
    renamed = find_renamed_state(
        buffers, lambda method: describe_used_buffers(programs[method])
    )
    with _neutral_defaults() as defaults:
        with sharing_members(holds_storages=True):
            save_programs(programs, handover.archive)
        stored = _put_examples(examples, handover)
        recordings = _put_recordings(
            references, programs, examples, defaults, root, handover, announcements
        )
    methods = [
        {
            "name": name,
            "examples": stored[name],
            "examples_of_export": values[name] is None and bool(stored[name]),
            "batches": batches[name],
            "reference": recordings.get(name),
            "renamed": renamed.get(name, {}),
        }
        for name in programs
    ]
    warnings = [_find_warnings(name, program) for name, program in programs.items()]
    return {
        "methods": methods,
        "constants": constants,
        "warnings": list(filter(None, warnings)),
    }


def hand_over_stream(
    module: ModuleType,
    stream: Iterator[Any],
    parameters: Mapping[str, Any],
    handover: Handover,
    root: Path,
    announcements: Announcements | None = None,
) -> Json:
    """Hand over the methods that an exporter yields, and the constant methods.

    Returns their records.

    Each method is written, and only its buffers are kept, before the exporter continues. So each
    reference is recorded separately, not in sequence with those of other methods. `announcements`
    is as in `hand_over_all`. Raises SourceError if a value isn't a method, or if no method can have
    its name.
    """
    methods: list[Json] = []
    warnings: list[str] = []
    buffers: dict[str, dict[str, Tensor]] = {}
    uses: dict[str, Mapping[str, Mapping[str, Any]]] = {}

    def take() -> Iterator[tuple[str, ExportedProgram]]:
        while (value := next(stream, _END)) is not _END:
            name, program, reference = parse_yielded(module, value)
            check_names(module, [*buffers, name])
            exported = {} if reference is None else {name: reference}
            check_eager(module, exported)
            buffers[name] = list_buffers(program)
            if buffers[name]:
                uses[name] = describe_used_buffers(program)
            methods.append(
                _take_one(
                    module,
                    name,
                    program,
                    exported,
                    parameters,
                    handover,
                    root,
                    announcements,
                )
            )
            warnings.append(_find_warnings(name, program))
            with _neutral_defaults():
                del value, reference, exported
                yield name, program
                del program
            gc.collect()  # programs and modules contain reference cycles

    with sharing_members():
        save_programs(_StreamedPrograms(take()), handover.archive)
    if not methods:
        parse_yielded(module, None)
    renamed = find_renamed_state(buffers, lambda method: uses.get(method, {}))
    for method in methods:
        method["renamed"] = renamed.get(method["name"], {})
    constants = call_constants(module, parameters, buffers, handover.put)
    return {
        "methods": methods,
        "constants": constants,
        "warnings": list(filter(None, warnings)),
    }


class _StreamedPrograms(dict[str, ExportedProgram]):
    """Programs that `save_programs` requests one at a time, through `items` alone."""

    def __init__(self, programs: Iterator[tuple[str, ExportedProgram]]) -> None:
        super().__init__()
        self._programs = programs

    def items(self) -> Any:
        return self._programs


def _take_one(
    module: ModuleType,
    name: str,
    program: ExportedProgram,
    exported: Mapping[str, Reference],
    parameters: Mapping[str, Any],
    handover: Handover,
    root: Path,
    announcements: Announcements | None,
) -> Json:
    """Hand over the inputs of one method; return its record, without its renamed state."""
    programs = {name: program}
    value = call_inputs(module, "example", name, parameters)
    examples = parse_examples(module, programs, {name: value})
    references = find_references(module, programs, exported, parameters)
    batches = _put_calibration(module, name, program, parameters, handover)
    with _neutral_defaults() as defaults:
        stored = _put_examples(examples, handover)
        recordings = _put_recordings(
            references, programs, examples, defaults, root, handover, announcements
        )
    return {
        "name": name,
        "examples": stored[name],
        "examples_of_export": value is None and bool(stored[name]),
        "batches": batches,
        "reference": recordings.get(name),
    }


def _put_calibration(
    module: ModuleType,
    name: str,
    program: ExportedProgram,
    parameters: Mapping[str, Any],
    handover: Handover,
) -> list[Digest]:
    """Hand over the calibration inputs of a method.

    Each set is a separate record, so that an exporter that yields sets has one of them in memory at
    a time.
    """
    value = call_inputs(module, "calibration", name, parameters)
    sets = parse_inputs(module, "calibration", name, program, value)
    return [handover.put(save_inputs([input_set])) for input_set in sets]


def _put_examples(
    examples: Mapping[str, list[InputSet]], handover: Handover
) -> dict[str, Digest | None]:
    return {
        name: handover.put(save_inputs(sets)) if sets else None
        for name, sets in examples.items()
    }


def _put_recordings(
    references: Mapping[str, Reference],
    programs: Programs,
    examples: Mapping[str, list[InputSet]],
    defaults: tuple[torch.dtype, torch.device],
    root: Path,
    handover: Handover,
    announcements: Announcements | None,
) -> dict[str, Digest]:
    """Hand over recordings of the references' outputs, and return their digests by method."""
    recordings = {}
    for recorded in call_all(
        "record_references",
        references,
        programs,
        examples,
        *defaults,
        root,
        announcements,
    ):
        for name, recording in recorded.items():
            recordings[name] = handover.put(recording)
    return recordings


@contextmanager
def _neutral_defaults() -> Iterator[tuple[torch.dtype, torch.device]]:
    """Reset torch's default dtype and device within the context; yield the exporter's."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    is_elsewhere = device.type != "cpu"  # setting the CPU would activate a mode
    torch.set_default_dtype(torch.float32)
    if is_elsewhere:
        torch.set_default_device(None)
    try:
        yield dtype, device
    finally:
        torch.set_default_dtype(dtype)
        if is_elsewhere:
            torch.set_default_device(device)


def _find_warnings(method: str, program: ExportedProgram) -> str:
    """Return a warning if a method was exported in training mode, so useless to compile, or ""."""
    operators = [o for o in find_random_operators(program) if o.cause == "training"]
    if not operators:
        return ""
    return f"{method}: it holds {describe_random_operators(operators)}"
