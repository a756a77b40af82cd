"""Records the references of an exporter, after its export.

Each reference runs exactly as the exporter hands it over, including mode and dtype, in a fork of
the exporter's process that may die.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from pipeline.features.references.guarded import Begin, GuardError, run_guarded
from pipeline.features.references.recorder import (
    Reference,
    ReferenceRecorder,
    name_origin,
)
from pipeline.features.references.recordings import (
    RecordedCall,
    Recording,
    save_recording,
)
from pipeline.features.references.reference_state import (
    refuse_changed_parameter,
    with_defaults,
)
from pipeline.program.inputs import InputSet


def record_references(
    references: Mapping[str, Reference],
    programs: Mapping[str, ExportedProgram],
    examples: Mapping[str, Sequence[InputSet]],
    dtype: torch.dtype,
    device: torch.device,
    root: Path,
    announcements: Any = None,
) -> dict[str, bytes]:
    """Run references, and return their recordings by method, in the form that the store keeps.

    Everything that they change is restored.

    Args:
        dtype, device: torch's defaults while the exporter ran.
        root: the workspace.
        announcements: for a process that can't fork, so that references run in it: takes a label
            before anything that may end the process, and holds the labels that ended earlier
            processes.

    Raises:
        SourceError: in such a process, a reference changes a parameter in place; methods exported
            later would see the change.
    """
    if not references:
        return {}
    defaults = partial(with_defaults, dtype, device)
    make = partial(ReferenceRecorder, references, programs, examples, defaults, root)
    if announcements is not None:
        return _record_here(make(announcements.announce, announcements.deaths))
    try:
        return _unpack(run_guarded(partial(_record, make)))
    except GuardError as error:
        return {method: _save_failed(method, error, examples) for method in references}


def _record(
    make: Callable[[Begin, Mapping[str, str]], ReferenceRecorder],
    begin: Begin,
    deaths: Mapping[str, str],
) -> bytes:
    return _pack(_save_all(make(begin, deaths)))


def _record_here(recorder: ReferenceRecorder) -> dict[str, bytes]:
    saved = _save_all(recorder)
    if recorder.changed_for_good:
        raise refuse_changed_parameter()
    return saved


def _save_all(recorder: ReferenceRecorder) -> dict[str, bytes]:
    recordings = recorder.record()
    return {name: save_recording(recording) for name, recording in recordings.items()}


def _save_failed(
    method: str, error: GuardError, examples: Mapping[str, Sequence[InputSet]]
) -> bytes:
    """Return the recording of a reference that could not be run at all."""
    inputs = examples[method][0] if examples[method] else InputSet((), {}, "any inputs")
    call = RecordedCall(method, inputs, {}, f"unknown error: {error}; see the log")
    return save_recording(Recording(name_origin(method), [[call]]))


def _pack(parts: Mapping[str, bytes]) -> bytes:
    sizes = json.dumps({name: len(data) for name, data in parts.items()})
    return b"".join([sizes.encode(), b"\n", *parts.values()])


def _unpack(data: bytes) -> dict[str, bytes]:
    header, _, body = data.partition(b"\n")
    parts, start = {}, 0
    for name, size in json.loads(header).items():
        parts[name] = body[start : start + size]
        start += size
    return parts
