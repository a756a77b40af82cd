"""Read the times in an ETDump with ExecuTorch's own deserializer, which imports exir."""

from __future__ import annotations

from typing import Any

from executorch.devtools.etdump.serialize import deserialize_from_etdump_flatcc

from pipeline.features.native.profile_rows import (
    DELEGATE,
    INSIDE,
    KERNEL,
    METHOD,
    OPERATOR,
    OTHER,
    TimedEvent,
)
from pipeline.store.errors import PipelineError

_KINDS = {
    "Method::execute": METHOD,
    "OPERATOR_CALL": OPERATOR,
    "DELEGATE_CALL": DELEGATE,
}
_KERNEL = "native_call_"  # what a kernel calls itself, within OPERATOR_CALL


def read_runs(dump: bytes) -> list[list[TimedEvent]]:
    """Return the timed events of each execution in an ETDump, in the order in which they ended.

    Raises PipelineError for bytes that ExecuTorch can't read.
    """
    try:
        etdump = deserialize_from_etdump_flatcc(dump)
    except Exception as error:  # it raises whatever damaged bytes lead to
        reason = f"{type(error).__name__}: {error}"
        raise PipelineError(f"ExecuTorch can't read the ETDump ({reason})") from error
    runs = []
    for run in etdump.run_data:
        profiled = [event.profile_event for event in run.events or ()]
        events = [_make_event(event) for event in profiled if event is not None]
        if any(event.kind == METHOD for event in events):  # others load or initialize
            runs.append(events)
    return runs


def _make_event(event: Any) -> TimedEvent:
    name = event.name or ""
    kind = _KINDS.get(name, OTHER)
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
