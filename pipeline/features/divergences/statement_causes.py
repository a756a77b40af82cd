"""Causes in a statement of the model: a branch, a loop, or a number that tracing kept.

The text of a line shows what the line depends on: a likely cause, not a proof.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.features.divergences.branches import (
    Branch,
    describe_statement,
    find_branch,
    find_called_branches,
    find_expression,
    find_loop,
)
from pipeline.features.divergences.cause import Cause, call_of
from pipeline.features.divergences.difference import (
    RunDifference,
    count_visits,
    innermost_forward,
    place_of,
)
from pipeline.features.divergences.hints import (
    EXPORT_FLAGS,
    EXPORT_HINT,
    find_branch_hint,
    find_value_hint,
)
from pipeline.features.divergences.places import FrameCall, Place
from pipeline.store.errors import plural


def find_loop_count(difference: RunDifference) -> Cause | None:
    """Find a loop that the program runs a different number of times."""
    event = difference.reference or difference.program
    call = None
    if event is not None:
        call = innermost_forward(place_of(event.site))
    if event is None or call is None:
        return None
    loop = find_loop(difference.path(call.frame), call.frame.line)
    counts = count_visits(difference, event)
    if loop is None or counts[0] == counts[1]:
        return None
    times = (
        f"runs {_times(counts[0])} in the program, {_times(counts[1])} in the reference"
    )
    return Cause(
        f"`{loop.text}` {times}: {explain_branch(loop, difference)}", _at(call, loop)
    )


def _times(count: int) -> str:
    return plural(count, "time")


def find_number(difference: RunDifference) -> Cause | None:
    """Find a number or option that differs in one statement."""
    return find_option(difference) if difference.same_statement else None


def find_option(difference: RunDifference) -> Cause | None:
    """Find a number or option of an operator that differs, on whatever line it is."""
    program = difference.program
    reference = difference.reference
    if program is None or reference is None or program.base != reference.base:
        return None
    names = _differing_scalars(program.scalars, reference.scalars)
    if not names:
        return None
    name = names[0]
    values = (
        f"{program.scalars[name]!r} in the program, {reference.scalars[name]!r} in "
        "the reference"
    )
    call = call_of(reference.site, difference)
    reason = explain_value(difference, call, reference.scalars[name])
    return Cause(f"{name} is {values}: {reason}", call)


def _differing_scalars(
    program: Mapping[str, Any], reference: Mapping[str, Any]
) -> list[str]:
    # As strings, since NaN is not equal to itself, and 1 is equal to True.
    return [
        name
        for name in program
        if name in reference and repr(program[name]) != repr(reference[name])
    ]


def find_taken_branch(difference: RunDifference) -> Cause | None:
    """Find a branch that only one of the runs takes."""
    for branch, call in _branches(difference):
        way = (
            "takes its `except` branch"
            if branch.kind == "try"
            else "takes a different branch"
        )
        reason = explain_branch(branch, difference)
        return Cause(
            f"`{branch.text}` {way} in the program: {reason}", _at(call, branch)
        )
    return None


def _branches(difference: RunDifference) -> Iterator[tuple[Branch, FrameCall]]:
    """Yield branches that may have led to different operators, the most likely first."""
    if difference.same_statement:
        return
    places = difference.places()
    parting = _parting_calls(*places)
    if parting is not None:
        program, reference = parting
        path = difference.path(reference.frame)
        branch = find_branch(path, reference.frame.line, program.frame.line)
        if branch is not None:
            yield branch, reference
    is_alone = None in places
    for place in reversed(places):
        for call in reversed(place.calls if place is not None else ()):
            yield from _branches_around(call, difference, is_alone)


def _branches_around(
    call: FrameCall, difference: RunDifference, is_alone: bool
) -> Iterator[tuple[Branch, FrameCall]]:
    """Yield branches on the line of a call, around it and in the functions it calls.

    Args:
        is_alone: whether the other run has no such operator; if it has, only a test of whether the
            model is being exported is conclusive.
    """
    path = difference.path(call.frame)
    line = call.frame.line
    branch = find_expression(path, line) or find_branch(path, line, None)
    if branch is not None and (is_alone or EXPORT_FLAGS.search(branch.reasons)):
        yield branch, call
    for called in find_called_branches(path, line):
        if EXPORT_FLAGS.search(called.reasons):
            yield called, call


def _parting_calls(
    program_place: Place | None, reference_place: Place | None
) -> tuple[FrameCall, FrameCall] | None:
    """Return the calls of one function in which two places are on different lines."""
    if program_place is None or reference_place is None:
        return None
    # A program only knows the lines of `forward`, so helpers can't be paired with it.
    partial = all(call.frame.function == "forward" for call in program_place.calls)
    calls = [
        c for c in reference_place.calls if not partial or c.frame.function == "forward"
    ]
    for program, reference in zip(program_place.calls, calls, strict=False):
        if program.frame.function != reference.frame.function:
            return None
        if program.frame.line != reference.frame.line:
            return program, reference
    return None


def explain_branch(branch: Branch, difference: RunDifference) -> str:
    """Return what a branch depends on, and the remedy."""
    names = _mentioned(branch.reasons, difference)
    if names:
        return _state_text(names)
    reads_value = _reads_value(branch, difference)
    return find_branch_hint(branch.reasons, reads_value) or (
        "tracing kept the value at the time of the export; before the export, set it as in the "
        "reference, or export a method for each case"
    )


def _reads_value(branch: Branch, difference: RunDifference) -> bool:
    """Return whether the reference read a tensor's value on the lines of a test."""
    for event in difference.comparison.reference.events:
        if event.number is not None:
            call = call_of(event.site, difference)
            if call is not None and branch.line <= call.frame.line <= branch.last:
                return True
    return False


def _mentioned(text: str, difference: RunDifference) -> list[str]:
    """Return the attributes in source code that a call changes in Python."""
    names = difference.changed_attributes()
    return [
        n for n in names if re.search(rf"\b{re.escape(n.rpartition('.')[2])}\b", text)
    ]


def _state_text(names: list[str]) -> str:
    return (
        f"the call sets '{names[0]}' in Python, which a program can't see; make it a buffer, or "
        "an input"
    )


def explain_value(
    difference: RunDifference, call: FrameCall | None, value: Any = None
) -> str:
    """Return where a value that tracing kept comes from, and the remedy.

    Args:
        value: the reference's value, if it is a Python number.
    """
    text = ""
    if call:
        text = describe_statement(difference.path(call.frame), call.frame.line)
    names = _mentioned(text, difference)
    if names:
        return _state_text(names)
    numbers = [
        e.number for e in difference.comparison.reference.events if e.number is not None
    ]
    was_read = value is not None and value in numbers
    return find_value_hint(text, was_read) or (
        "tracing kept the Python value at the time of the export; export again, or make it a "
        "buffer or an input"
    )


def find_python_state(difference: RunDifference) -> Cause | None:
    """Find attributes that change in Python with every call."""
    event = difference.reference
    call = None
    if event is not None:
        call = call_of(event.site, difference)
    if call is None:
        return None
    text = describe_statement(difference.path(call.frame), call.frame.line)
    names = _mentioned(text, difference)
    if names:
        return Cause(_state_text(names), call)
    return None


def find_export_flag(difference: RunDifference) -> Cause | None:
    """Find a statement with a value that depends on the export."""
    for event in (difference.reference, difference.program):
        call = None
        if event is not None:
            call = call_of(event.site, difference)
        if call is not None:
            text = describe_statement(difference.path(call.frame), call.frame.line)
            if EXPORT_FLAGS.search(text):
                return Cause(f"the line {EXPORT_HINT}", call)
    return None


def _at(call: FrameCall, branch: Branch) -> FrameCall:
    """Return a call moved to the line of a branch in the same file."""
    frame = call.frame
    moved = type(frame)(frame.file, branch.line, frame.function, branch.text)
    return FrameCall(moved, call.module)
