"""Summarizes the timed events of a method as rows sorted by time, and as a trace for Perfetto.

It must not know ETDumps or devices, and doesn't import torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import Any

Json = dict[str, Any]
METHOD, OPERATOR, DELEGATE = "method", "operator", "delegate"
INSIDE = "in delegate"  # an instruction of a delegate
KERNEL = "kernel"  # nested in the call of an operator
OTHER = "other"
# The kinds of events, keyed by the names that ExecuTorch's runtime gives them.
KINDS: Mapping[str, str] = MappingProxyType(
    {"Method::execute": METHOD, "OPERATOR_CALL": OPERATOR, "DELEGATE_CALL": DELEGATE}
)
_RUNTIME = "(runtime, between instructions)"
_REST = "(rest of the delegate's call)"
_NO_INSTRUCTION = -1
_TRACK, _APART = 1, 2


class TimedEvent:
    """A timed event of one execution.

    Attributes:
        name: the event's name; for an instruction of a delegate, the name that the delegate gives
            it.
        kind: METHOD, OPERATOR, DELEGATE, INSIDE, KERNEL or OTHER.
        instruction: the index of the method's instruction that the event is part of.
        start: the start in nanoseconds on the device's clock; `end` uses the same unit and clock.
    """

    def __init__(
        self, name: str, kind: str, instruction: int, start: int, end: int
    ) -> None:
        self.name = name
        self.kind = kind
        self.instruction = instruction
        self.start = start
        self.end = end

    @property
    def duration(self) -> int:
        return self.end - self.start


class InstructionFacts:
    """An instruction of a method.

    It has an operator ("" for the call of a delegate), the backend that runs it, the source line or
    partition that it comes from, and the innermost module with everything that it computes.
    """

    def __init__(
        self, operator: str, backend: str, where: str, module: str = ""
    ) -> None:
        self.operator = operator
        self.backend = backend
        self.where = where
        self.module = module


class ProfileRow:
    """The time spent in an operator, an instruction of a delegate, or a remainder.

    Attributes:
        calls: the number of calls in one execution.
        milliseconds: the time in one execution, as the median of all executions.
        share: the fraction of the whole method's median time, from 0 to 1.
        backend: the backend of the instruction; "" for the runtime itself, as are `where` and
            `module`.
    """

    def __init__(
        self, name: str, calls: int, milliseconds: float, share: float
    ) -> None:
        self.name = name
        self.calls = calls
        self.milliseconds = milliseconds
        self.share = share
        self.backend = ""
        self.where = ""
        self.module = ""


# The subject of a row: the index of an instruction, and the name of a part of it, or "".
_Place = tuple[int, str]


def make_rows(
    runs: Sequence[Sequence[TimedEvent]], instructions: Mapping[int, InstructionFacts]
) -> list[ProfileRow]:
    """Return the rows of a method's executions, the longest first.

    No time is counted twice: if a delegate names its instructions, the time of its call is split
    into one row for each of them and one for the rest.
    """
    totals = [_sum_run(run) for run in runs]
    calls: Counter[_Place] = Counter()
    for run in runs:
        for place, count in _count_calls(run).items():
            calls[place] = max(calls[place], count)
    whole = median(_find_whole(run) for run in runs)
    places: dict[_Place, None] = {}
    for total in totals:
        places |= dict.fromkeys(total)
    rows = []
    for place in places:
        time = median(total.get(place, 0) for total in totals)
        instruction, name = place
        share = time / whole if whole else 0.0
        row = ProfileRow(name, calls[place] or 1, time / 1e6, share)
        facts = instructions.get(instruction)
        if facts is not None:
            row.name = name or facts.operator or "delegate call"
            row.backend, row.where = facts.backend, facts.where
            row.module = facts.module
        rows.append(row)
    return sorted(rows, key=lambda row: -row.milliseconds)


def _find_whole(run: Sequence[TimedEvent]) -> int:
    """Return how many nanoseconds the execution of the method took."""
    return sum(event.duration for event in run if event.kind == METHOD)


def _count_calls(run: Sequence[TimedEvent]) -> Counter[_Place]:
    counts: Counter[_Place] = Counter()
    for event in run:
        if event.kind == INSIDE:
            counts[(event.instruction, event.name)] += 1
        elif event.kind == DELEGATE:
            counts[(event.instruction, _REST)] += 1
            counts[(event.instruction, "")] += 1
        elif event.kind == OPERATOR:
            counts[(event.instruction, "")] += 1
    return counts


def _sum_run(run: Sequence[TimedEvent]) -> dict[_Place, int]:
    """Return the nanoseconds that one execution spent in each place."""
    inside: Counter[int] = Counter()
    totals: dict[_Place, int] = {}
    for event in run:
        if event.kind == INSIDE:
            place = (event.instruction, event.name)
            totals[place] = totals.get(place, 0) + event.duration
            inside[event.instruction] += event.duration
    calls: Counter[int] = Counter()
    for event in run:
        if event.kind in (OPERATOR, DELEGATE):
            calls[event.instruction] += event.duration
    for instruction, time in calls.items():
        name = _REST if instruction in inside else ""
        totals[(instruction, name)] = max(0, time - inside[instruction])
    between = _find_whole(run) - sum(calls.values())
    totals[(_NO_INSTRUCTION, _RUNTIME)] = max(0, between)
    return totals


def make_trace(
    runs: Sequence[Sequence[TimedEvent]],
    instructions: Mapping[int, InstructionFacts],
    title: str,
    facts: Mapping[str, Any],
) -> Json:
    """Return executions as Chrome trace events, which Perfetto opens.

    Args:
        title: the name of the track.
        facts: metadata of the trace, stored in `otherData`.
    """
    starts = [event.start for run in runs for event in run]
    origin = min(starts, default=0)
    events: list[Json] = [
        _name_track("process_name", _TRACK, title),
        _name_track("thread_name", _TRACK, "method"),
    ]
    for run in runs:
        events += _trace_run(run, instructions, origin)
    if any(event["tid"] == _APART for event in events):
        events.append(_name_track("thread_name", _APART, "delegates' own clocks"))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": dict(facts),
    }


def _name_track(what: str, track: int, name: str) -> Json:
    return {"name": what, "ph": "M", "pid": 1, "tid": track, "args": {"name": name}}


def _trace_run(
    run: Sequence[TimedEvent],
    instructions: Mapping[int, InstructionFacts],
    origin: int,
) -> Iterator[Json]:
    """Yield the trace events of one execution, enclosing events before those they enclose."""
    calls = [event for event in run if event.kind == DELEGATE]
    for event in sorted(run, key=lambda event: (event.start, -event.duration)):
        facts = instructions.get(event.instruction)
        name = event.name
        arguments: Json = {}
        if facts is not None and event.kind != METHOD:
            arguments = {
                "instruction": event.instruction,
                "backend": facts.backend,
                "source": facts.where,
            }
            if event.kind in (OPERATOR, DELEGATE):
                name = facts.operator or facts.backend
        track = _TRACK
        if event.kind == INSIDE and not any(_holds(call, event) for call in calls):
            track = _APART
        yield {
            "name": name,
            "cat": event.kind,
            "ph": "X",
            "pid": 1,
            "tid": track,
            "ts": (event.start - origin) / 1e3,
            "dur": event.duration / 1e3,
            "args": arguments,
        }


def _holds(call: TimedEvent, event: TimedEvent) -> bool:
    """Return whether a delegate's event lies within this call, as it does if both use one clock."""
    is_its = call.instruction == event.instruction
    return is_its and call.start <= event.start and event.end <= call.end
