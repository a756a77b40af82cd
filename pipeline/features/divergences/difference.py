"""The place where two runs diverge, as the rules for causes see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from torch import nn

from pipeline.features.divergences.frontier import (
    ROUNDING,
    TraceComparison,
    find_tolerance,
)
from pipeline.features.divergences.places import (
    FrameCall,
    Place,
    name_class,
    place_of_node,
)
from pipeline.features.divergences.trace import Leaf, Trace, TraceEvent
from pipeline.program.source_lines import name_line
from pipeline.store.source_line import SourceLine

_Key = tuple[str, str, str, int]


@dataclass(frozen=True)
class RunDifference:
    """The first operators or values that diverge.

    Attributes:
        tolerance: the distance at which the runs diverge, in units in the last place.
        program: the program's operator; None if only the reference runs something there.
        reference: the reference's operator; None if only the program runs something there.
        program_leaves: values with which the program begins and that diverge; `reference_leaves`
            are the reference's.
        same_statement: whether both operators come from one statement in the source.
        root: the workspace.
    """

    comparison: TraceComparison
    tolerance: float
    program: TraceEvent[Any] | None
    reference: TraceEvent[Any] | None
    program_leaves: Sequence[Leaf[Any]]
    reference_leaves: Sequence[Leaf[Any]]
    root: Path

    @property
    def labels(self) -> list[str]:
        """The labels of the outputs that differ."""
        return self.comparison.differing_outputs(self.tolerance)

    @property
    def output_error(self) -> float:
        """The relative distance of these outputs; infinite if they can't be compared."""
        return self.comparison.output_error(self.labels)

    @property
    def is_rounding(self) -> bool:
        """Whether the outputs differ by no more than equivalent operators may."""
        return self.output_error <= ROUNDING

    @property
    def same_statement(self) -> bool:
        if self.program is None or self.reference is None:
            return False
        return statement_key(self.program) == statement_key(self.reference)

    def find_twin(self, event: TraceEvent[Any]) -> TraceEvent[Any] | None:
        """Return the same call of the same operator in the other run, if its inputs agree.

        Returns None if they don't, or if the runs execute the operator's statement a different
        number of times.
        """
        is_program = event is self.program
        traces = self.comparison.program, self.comparison.reference
        trace, other_trace = traces if is_program else reversed(traces)
        occurrences = find_statement(event, trace)
        twins = find_statement(event, other_trace)
        if len(occurrences) != len(twins):
            return None
        twin = twins[occurrences.index(event)]
        for value in twin.reads:
            if not self.comparison.agrees(not is_program, value, self.tolerance):
                return None
        return twin

    def places(self) -> tuple[Place | None, Place | None]:
        """Return the places of the program's operator and of the reference's."""
        program = None if self.program is None else place_of(self.program.site)
        reference = None if self.reference is None else place_of(self.reference.site)
        return program, reference

    def path(self, frame: SourceLine) -> Path:
        """Return the file of a call, in the workspace if it exists there."""
        if frame.file:
            return self.root / name_line(frame, self.root).file
        return Path(frame.file)

    def changed_attributes(self) -> list[str]:
        """Return the names of Python attributes, but not buffers, that a call changes."""
        buffers = set()
        for name, holder in self.comparison.reference.holders.values():
            if isinstance(holder, nn.Module):
                prefix = f"{name}." if name else ""
                buffers |= {
                    prefix + key for key in (*holder._buffers, *holder._parameters)
                }
        return [
            name for name in self.comparison.reference.changed if name not in buffers
        ]


def place_of(site: Any) -> Place:
    """Return the place of a site, which is a node of a program or already a place in Python."""
    if site is None:
        return Place(None, ())
    if isinstance(site, Place):
        return site
    return place_of_node(site)


def statement_key(event: TraceEvent[Any]) -> _Key:
    """Return a key for an operator in the source: its name, its module's class, file and line.

    Lines are those in functions called `forward`, since a program knows no others.
    """
    place = place_of(event.site)
    call = innermost_forward(place)
    kind = name_class(place.module) if place.module else ""
    if call is None:
        return event.base, kind, "", 0
    return event.base, kind, PurePath(call.frame.file).name, call.frame.line


def innermost_forward(place: Place) -> FrameCall | None:
    """Return the innermost call of a function called `forward`, or else the innermost call."""
    forwards = [call for call in place.calls if call.frame.function == "forward"]
    return next(reversed(forwards or place.calls), None)


def make_difference(comparison: TraceComparison, root: Path) -> RunDifference | None:
    """Pair the first operators that diverge, one of which may exist in only one run.

    Returns None if both runs have equal outputs.
    """
    tolerance = find_tolerance(comparison)
    if tolerance is None:
        return None
    (events, leaves, _), (reference_events, reference_leaves, _) = comparison.find(
        tolerance
    )
    program_event = next(iter(events), None)
    reference_event = next(iter(reference_events), None)
    difference = RunDifference(
        *(comparison, tolerance, program_event, reference_event),
        *(leaves, reference_leaves, root),
    )
    # The reference's event first: a program only knows the lines of `forward`.
    if reference_event is not None and (twin := difference.find_twin(reference_event)):
        program_event = twin
    elif program_event is not None and (twin := difference.find_twin(program_event)):
        reference_event = twin
    elif program_event is not None and reference_event is not None:
        program_is_later = _comes_later(
            program_event, comparison.reference, reference_event
        )
        reference_is_later = _comes_later(
            reference_event, comparison.program, program_event
        )
        if program_is_later and not reference_is_later:
            program_event = None
        elif reference_is_later and not program_is_later:
            reference_event = None
    return replace(difference, program=program_event, reference=reference_event)


def find_statement(event: TraceEvent[Any], trace: Trace[Any]) -> list[TraceEvent[Any]]:
    """Return all calls in a run that come from the same statement as an event."""
    key = statement_key(event)
    return [e for e in trace.events if e.base == event.base and statement_key(e) == key]


def _comes_later(
    event: TraceEvent[Any], trace: Trace[Any], start: TraceEvent[Any]
) -> bool:
    """Return whether the other run reaches an event's statement after an operator."""
    return any(later.place > start.place for later in find_statement(event, trace))


def count_visits(difference: RunDifference, event: TraceEvent[Any]) -> tuple[int, int]:
    """Return how often the program and the reference run the statement of an operator."""
    program = find_statement(event, difference.comparison.program)
    return len(program), len(find_statement(event, difference.comparison.reference))
