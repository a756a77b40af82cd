"""Names where an exported program diverges from its eager reference, and why.

Both run once on the same inputs, recorded operator by operator. They diverge at the first operator
whose inputs agree and whose result doesn't; the source around it shows the cause. The result is an
explanation in one sentence, not a verdict: whether a difference matters is judged elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.export import ExportedProgram

from pipeline.features.divergences.causes import Cause, find_cause
from pipeline.features.divergences.difference import (
    RunDifference,
    make_difference,
    place_of,
)
from pipeline.features.divergences.frontier import TraceComparison
from pipeline.features.divergences.places import FrameCall, Place, name_module
from pipeline.features.divergences.runs import find_state, run_program, run_reference
from pipeline.features.divergences.trace import Trace, TraceEvent
from pipeline.program.inputs import InputSet
from pipeline.program.module_paths import Frame
from pipeline.program.source_lines import name_line
from pipeline.store.errors import plural


def describe_divergence(
    program: ExportedProgram,
    reference: Callable[..., object],
    inputs: InputSet,
    root: Path | None = None,
) -> str:
    """Return a sentence that names where a program diverges from its reference, and the cause.

    Returns "" if the outputs are equal or no cause is found. The reference doesn't change: its
    buffers, attributes and mode are restored, and so are the random number generators.

    Args:
        reference: an eager module, or a function of the method's inputs.
        root: the workspace, relative to which lines are named; by default the working directory.
    """
    try:
        return locate_divergence(program, reference, inputs, root or Path.cwd())
    except (
        Exception
    ):  # user code may raise anything; the judge of the reference reports it
        return ""


def locate_divergence(
    program: ExportedProgram,
    reference: Callable[..., object],
    inputs: InputSet,
    root: Path,
) -> str:
    """Return what `describe_divergence` returns. Raises whatever the reference raises.

    Earlier calls may have changed the reference's state, so the program first runs from the same
    state, and then, if that explains nothing, from its own initial state.
    """
    expected = run_reference(reference, program, inputs)
    state = find_state(program, expected.holders)
    # The reference's present state first, which earlier calls may have changed.
    for start in (state, {}) if state else ({},):
        actual = run_program(program, inputs, start)
        comparison = TraceComparison(actual, expected)
        difference = make_difference(comparison, root)
        if difference is not None:
            return _describe(difference)
    return _describe_form(actual, expected) or _describe_random(expected, root)


def _describe_form(actual: Trace[Any], expected: Trace[Any]) -> str:
    """Describe a difference in the number or shape of the outputs, or return ""."""
    if len(actual.returned) != len(expected.returned):
        values = plural(len(actual.returned), "value")
        return f"the program returns {values}, the reference {len(expected.returned)}"
    pairs = zip(actual.returned, expected.returned, strict=True)
    for number, (value, reference) in enumerate(pairs):
        if not isinstance(value, Tensor) or not isinstance(reference, Tensor):
            continue
        if value.shape != reference.shape:
            shape = tuple(value.shape)
            reference_shape = tuple(reference.shape)
            return (
                f"output {number}: shape {shape} in the program, {reference_shape} in the "
                "reference"
            )
    return ""


def _describe_random(expected: Trace[Any], root: Path) -> str:
    """Describe a draw of random numbers in both runs, which got the same numbers here."""
    for event in expected.events:
        if event.random:
            place = place_of(event.site)
            where = _join(event.operator, place.module, place.call(root), root)
            return f"{where}: it draws random numbers; both agree if they draw the same numbers"
    return ""


def _describe(difference: RunDifference) -> str:
    cause = find_cause(difference)
    event = difference.reference or difference.program
    if cause is None and event is None:
        return _describe_outputs(difference)
    cause = cause or _describe_operators(difference)
    place = cause.place or (
        place_of(event.site) if event is not None else Place(None, ())
    )
    call = cause.call or place.call(difference.root)
    subject = cause.subject or (event.operator if event is not None else "")
    root = difference.root
    where = _join(subject, _module(place, call, root), call, root)
    return f"{where}: {cause.text}"


def _module(place: Place, call: FrameCall | None, root: Path) -> Frame | None:
    """Return the module to name: the one around the call if the call isn't the place's default."""
    usual = place.call(root)
    is_other = call is not None and usual is not None and call.frame != usual.frame
    if is_other and call is not None:
        return call.module
    return place.module


def _subject(subject: str, module: Frame | None) -> str:
    if module is not None:
        return f"{subject} in {name_module(module)}"
    return subject


def _line(call: FrameCall | None, root: Path) -> str:
    if call is None:
        return ""
    line = name_line(call.frame, root)
    return f"{line.file}:{line.line}"


def _join(
    subject: str, module: Frame | None, call: FrameCall | None, root: Path
) -> str:
    line = _line(call, root)
    named = _subject(subject, module)
    if line:
        return f"{named}, {line}"
    return named


def _describe_operators(difference: RunDifference) -> Cause:
    """Describe the operators of both runs, if no cause was recognized."""
    program = difference.program
    reference = difference.reference
    if program is None:
        description = "only the reference runs it; the program has no counterpart there"
    elif reference is None:
        description = "only the program runs it; the reference has no counterpart there"
    elif program.base != reference.base:
        description = f"the program runs {_name(program, difference)} instead"
    else:
        description = "both run it on the same inputs, with different results"
    if difference.is_rounding:
        share = f"{difference.output_error:.1e}"
        return Cause(
            f"{description}; the outputs differ by {share} of their size, which rounding explains"
        )
    return Cause(description)


def _name(event: TraceEvent[Any], difference: RunDifference) -> str:
    call = place_of(event.site).call(difference.root)
    line = _line(call, difference.root)
    if line:
        return f"{event.operator} ({line})"
    return event.operator


def _describe_outputs(difference: RunDifference) -> str:
    """Describe the difference if all operators agree: other values returned, or another number."""
    comparison = difference.comparison
    form = _describe_form(comparison.program, comparison.reference)
    labels = ", ".join(difference.labels)
    return (
        form or f"{labels}: the program returns another of the values that both compute"
    )
