"""Reads the events of an ETDump with ExecuTorch's own deserializer."""

from __future__ import annotations

from typing import Any

from pipeline.features.native.profile_rows import (
    INSIDE,
    KERNEL,
    KINDS,
    METHOD,
    OTHER,
    TimedEvent,
)
from pipeline.store.errors import PipelineError

_KERNEL = "native_call_"  # the prefix of a kernel's event, nested in OPERATOR_CALL


def read_runs(dump: bytes) -> list[list[TimedEvent]]:
    """Return the timed events of each execution in an ETDump, in the order in which they ended.

    Raises:
        PipelineError: ExecuTorch can't read the ETDump.
    """
    runs = []
    for events in read_events(dump):
        profiled = [event.profile_event for event in events]
        timed = [_make_event(event) for event in profiled if event is not None]
        if any(event.kind == METHOD for event in timed):  # others load or initialize
            runs.append(timed)
    return runs


def read_events(dump: bytes) -> list[list[Any]]:
    """Return the events of each run in an ETDump, as objects of ExecuTorch's `devtools.etdump`.

    Raises:
        PipelineError: ExecuTorch can't read the ETDump.
    """
    # Imported lazily: it imports pandas, which a validation without traced devices doesn't need.
    from executorch.devtools.etdump.serialize import deserialize_from_etdump_flatcc

    try:
        etdump = deserialize_from_etdump_flatcc(dump)
    except Exception as error:  # damaged bytes can raise anything
        reason = f"{type(error).__name__}: {error}"
        raise PipelineError(f"ExecuTorch can't read the ETDump ({reason})") from error
    return [list(run.events or ()) for run in etdump.run_data]


def _make_event(event: Any) -> TimedEvent:
    name = event.name or ""
    kind = KINDS.get(name, OTHER)
    number = event.delegate_debug_id_int
    if event.delegate_debug_id_str:
        name, kind = event.delegate_debug_id_str, INSIDE
    elif number is not None and number >= 0:
        name, kind = f"debug id {number}", INSIDE
    elif name.startswith(_KERNEL):
        name, kind = name.removeprefix(_KERNEL), KERNEL
    return TimedEvent(
        name, kind, event.instruction_id, event.start_time, event.end_time
    )
