"""Records the references of an exporter beside it, after its export: each is run as the exporter
hands it over, mode and dtype included, in a fork of the exporter's process that may die of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch.export import ExportedProgram

from pipeline.features.references.guarded import Begin, GuardError, run_guarded
from pipeline.features.references.recorder import (
    Defaults,
    Reference,
    ReferenceRecorder,
    name_origin,
)
from pipeline.features.references.recordings import (
    RecordedCall,
    Recording,
    save_recording,
)
from pipeline.program.inputs import InputSet


def record_references(
    references: Mapping[str, Reference],
    programs: Mapping[str, ExportedProgram],
    examples: Mapping[str, Sequence[InputSet]],
    dtype: torch.dtype,
    device: torch.device,
    root: Path,
) -> dict[str, bytes]:
    """Run references, and return their recordings by method, as the store keeps them. All that they
    change is as before.

    Args:
        dtype, device: torch's defaults while the exporter ran.
        root: the workspace.
    """
    if not references:
        return {}
    defaults = Defaults(dtype, device)
    make = partial(ReferenceRecorder, references, programs, examples, defaults, root)
    try:
        return _unpack(run_guarded(partial(_record, make)))
    except GuardError as error:
        return {method: _save_failed(method, error, examples) for method in references}


def _record(
    make: Callable[[Begin, Mapping[str, str]], ReferenceRecorder],
    begin: Begin,
    deaths: Mapping[str, str],
) -> bytes:
    recordings = make(begin, deaths).record()
    return _pack(
        {name: save_recording(recording) for name, recording in recordings.items()}
    )


def _save_failed(
    method: str, error: GuardError, examples: Mapping[str, Sequence[InputSet]]
) -> bytes:
    """Return the recording of a reference that could not be run at all."""
    inputs = examples[method][0] if examples[method] else InputSet((), {}, "any inputs")
    call = RecordedCall(
        method, inputs, {}, f"no error that is known: {error}; the log says more"
    )
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
