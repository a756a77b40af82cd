"""Compares exported programs with their references: PyTorch in eager mode, or recorded outputs.

This is the first of two comparisons; the second compares the package with the exported program. A
reference that was run here, on the same kernels, must match within a few units in the last place
and the effect of rounding on this program (`features/rounding`). A reference from elsewhere must
match within the usual limits. Limits in the config replace both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from pipeline.config.validation import Limits
from pipeline.features.references.recordings import Outputs, RecordedCall
from pipeline.features.references.reference_form import (
    describe_order,
    describe_structure,
    describe_unchanged,
)
from pipeline.program.quantized_values import is_quantized
from pipeline.store.reasons import reason
from pipeline.validate.call_limits import CallLimits, DerivedLimits
from pipeline.validate.default_limits import most_share
from pipeline.validate.limits import judge_output
from pipeline.validate.metrics import OutputError, compare
from pipeline.validate.references import Lane, OpenLane, References

# Units in the last place of the greatest value, and of each value, by which two equivalent kernels
# may differ.
_UNITS = 16
_ON_EXAMPLES = (
    "the exported program is quantized, so the limits of validate.reference apply to "
    "examples"
)
# A single output, alone or in a tuple of one: a runtime can't tell them apart.
_ALONE = {"output", "output[0]"}
# Prefixes of returned outputs; gradients and parameters of a program that trains have others.
_RETURNED = ("output", "input ")


@dataclass(frozen=True, eq=False)
class OutputOutcome:
    """An output of the exported program compared with the reference's.

    It holds the error, its ratio to the limits, and the faults. `unjudged` means that the error
    lies between the capped limits and the wide ones, so it shows nothing.
    """

    name: str
    error: OutputError
    of_limit: float | None = 0.0
    wrong: tuple[str, ...] = ()
    unjudged: bool = False


@dataclass(frozen=True, eq=False)
class CallOutcome:
    """A call of the exported program compared with a recorded one.

    `wrong` is the fault of the call as a whole, `is_form` says that this fault is the form of the
    outputs, and `skipped` says why the call doesn't count.
    """

    call: RecordedCall
    where: str
    outputs: Sequence[OutputOutcome] = ()
    wrong: str = ""
    skipped: str = ""
    is_form: bool = False

    @property
    def wrong_outputs(self) -> list[str]:
        return [output.name for output in self.outputs if output.wrong]

    @property
    def diverges(self) -> bool:
        return bool(self.wrong or self.wrong_outputs)


class RecordingComparison:
    """Runs exported programs on recorded calls.

    Attributes:
        here: as in `Recording`.
        checks_errors: whether to run the exported program on generated inputs that the reference
            raises for; if both raise, the call doesn't count. A finished recording doesn't need it:
            it has no calls that both raise for.
        limits: the limits that the config sets, by method.
    """

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram],
        here: bool = True,
        checks_errors: bool = False,
        limits: Mapping[str, Limits] | None = None,
        open_lane: OpenLane = Lane,
    ) -> None:
        self.programs = programs
        self.here = here
        self.checks_errors = checks_errors
        self.limits = limits or {}
        self._open_lane = open_lane
        self._limits: dict[str, CallLimits] = {}
        self._sources: dict[tuple[tuple[str, ...], bool], dict[str, References]] = {}

    def compare(self, calls: Sequence[RecordedCall]) -> list[CallOutcome]:
        """Compare a sequence of calls from the initial state, up to the first failing call."""
        outcomes = list(self._run(calls, rounds=False))
        if all(_is_exact(outcome) for outcome in outcomes):
            return outcomes
        # Run with rounding only now: most programs give the same bits, so it is rarely needed.
        return list(self._run(calls, rounds=True))

    def _run(
        self, calls: Sequence[RecordedCall], rounds: bool
    ) -> Iterator[CallOutcome]:
        references = self._initial(
            tuple(dict.fromkeys(call.method for call in calls)), rounds
        )
        for step, call in enumerate(calls, 1):
            where = _where(calls, step)
            outcome = self._compare_call(
                references[call.method], call, step, where, rounds
            )
            yield outcome
            if not outcome.outputs:  # the sides' states differ from here on
                return

    def _compare_call(
        self,
        references: References,
        call: RecordedCall,
        step: int,
        where: str,
        rounds: bool,
    ) -> CallOutcome:
        """Compare a call; with `rounds`, its outputs are held to limits."""
        source = references.source
        raised = f"the reference raises {call.error}" if call.error else ""
        if raised and not (self.checks_errors and call.inputs.generated):
            return CallOutcome(call, where, wrong=raised)
        try:
            values = references.run_source(call.inputs)
        except Exception as error:  # whatever an operator raises
            fails = (
                f"the exported program raises {type(error).__name__}: {reason(error)}"
            )
            if call.inputs.generated:
                return CallOutcome(call, where, skipped=fails)
            return CallOutcome(call, where, wrong=fails)
        if raised:
            return CallOutcome(call, where, wrong=raised)
        names = [name for name, _ in source.outputs]
        actual = dict(zip(names, values, strict=True))
        pairs = _pair(actual, call.outputs)
        if pairs is None:
            returned = {
                name: actual[name] for name in names if name.startswith(_RETURNED)
            }
            wrong = describe_structure(returned, call.outputs)
            return CallOutcome(call, where, wrong=wrong, is_form=True)
        if call.inputs.generated and self._judges_quantization(call.method):
            return CallOutcome(call, where, skipped=_ON_EXAMPLES)
        if not rounds:
            glances = []
            for name, expected in pairs:
                glances.append(OutputOutcome(name, _glance(actual[name], expected)))
            return CallOutcome(call, where, glances)
        limits = self._choose_limits(references, call, values, step)
        outcome = _judge_outputs(
            call, where, actual, pairs, dict(zip(names, limits, strict=True))
        )
        if unchanged := describe_unchanged(outcome.wrong_outputs, call, source.program):
            return _explain_form(outcome, unchanged)
        return _find_order(outcome, actual)

    def _initial(self, methods: tuple[str, ...], rounds: bool) -> dict[str, References]:
        """Return the programs of methods in their initial state, made once."""
        key = methods, rounds
        if key not in self._sources:
            programs = {method: self.programs[method] for method in methods}
            self._sources[key] = References.make(programs, {}, rounds, self._open_lane)
        for references in self._sources[key].values():
            references.reset()
        return self._sources[key]

    def _choose_limits(
        self,
        references: References,
        call: RecordedCall,
        values: Sequence[Any],
        step: int,
    ) -> list[DerivedLimits]:
        """Return the limits of a call's outputs: those of the config, or derived from rounding."""
        call_limits = self._limits_of(call.method)
        if not call_limits.derived or self._judges_quantization(call.method):
            limits = DerivedLimits(call_limits.config_limits, call_limits.config_limits)
            return [limits] * len(values)
        rounded = [*references.run_rounded(call.inputs, step=step)]
        return call_limits.with_config(call_limits.by_rounding(values, rounded))

    def _judges_quantization(self, method: str) -> bool:
        """Return whether limits of the config say how much a quantized program may lose.

        It was quantized for real values, so limits derived from its own steps, and other inputs,
        show nothing.
        """
        limits = self._limits_of(method).config_limits
        has_limits = any(value is not None for _, value in limits)
        return has_limits and is_quantized(self.programs[method])

    def _limits_of(self, method: str) -> CallLimits:
        if method not in self._limits:
            share = most_share(self.programs[method])
            units = _UNITS if self.here else None
            self._limits[method] = CallLimits(
                self.limits.get(method, Limits()), share, units
            )
        return self._limits[method]


def _judge_outputs(
    call: RecordedCall,
    where: str,
    actual: Outputs,
    pairs: Sequence[tuple[str, Any]],
    limits: Mapping[str, DerivedLimits],
) -> CallOutcome:
    outcomes = []
    is_form = False
    for name, expected in pairs:
        output = _judge(name, actual[name], expected, limits[name])
        outcomes.append(output)
        is_other_type = not isinstance(expected, type(actual[name]))
        if output.error.mismatch is not None and is_other_type:
            is_form = True
    return CallOutcome(call, where, outcomes, is_form=is_form)


def _find_order(outcome: CallOutcome, actual: Outputs) -> CallOutcome:
    """Return the outcome with one sentence for outputs that are in another order."""
    order = describe_order(outcome.wrong_outputs, actual, outcome.call.outputs)
    return _explain_form(outcome, order) if order else outcome


def _explain_form(outcome: CallOutcome, sentence: str) -> CallOutcome:
    """Return an outcome in which one sentence replaces the faults of single outputs."""
    outputs = [replace(output, wrong=()) for output in outcome.outputs]
    return replace(outcome, outputs=outputs, wrong=sentence, is_form=True)


def _glance(actual: Any, expected: Any) -> OutputError:
    """Measure the error of an output, taking a shortcut if there is none."""
    tensors = isinstance(actual, Tensor) and isinstance(expected, Tensor)
    if tensors and actual.dtype == expected.dtype and torch.equal(actual, expected):
        return OutputError(0.0, 0.0, math.inf)
    return compare(actual, expected)


def _judge(
    name: str, actual: Any, expected: Any, limits: DerivedLimits
) -> OutputOutcome:
    """Judge an output by wide and capped limits.

    Beyond the wide limits it diverges, and within the capped ones it doesn't. In between, nothing
    is shown.
    """
    error = compare(actual, expected)
    faults, of_wide = judge_output(error, actual, expected, limits.wide)
    capped_faults, of_capped = judge_output(error, actual, expected, limits.capped)
    if faults or not capped_faults:
        return OutputOutcome(name, error, of_capped, faults)
    return OutputOutcome(name, error, of_wide, unjudged=True)


def _where(calls: Sequence[RecordedCall], step: int) -> str:
    """Return the name of a call's inputs, and its place in a sequence."""
    origin = calls[step - 1].inputs.origin
    if len(calls) == 1:
        return origin
    methods = list(dict.fromkeys(call.method for call in calls))
    if len(methods) == 1:
        return f"{origin} (call {step} from {calls[0].inputs.origin})"
    return (
        f"{calls[step - 1].method} on {origin} (call {step} of {' > '.join(methods)})"
    )


def _pair(actual: Outputs, reference_outputs: Outputs) -> list[tuple[str, Any]] | None:
    """Pair each output of the exported program with the reference's value, by name.

    Returns None if the reference has different outputs.
    """
    # A recording from elsewhere may lack the inputs that the method changes.
    names = [
        name
        for name in actual
        if name.startswith("output") or name in reference_outputs
    ]
    if {*names} == reference_outputs.keys():
        return [(name, reference_outputs[name]) for name in names]
    if (
        len(names) == len(reference_outputs) == 1
        and {*names, *reference_outputs} == _ALONE
    ):
        return [(names[0], value) for value in reference_outputs.values()]
    return None


def _is_exact(outcome: CallOutcome) -> bool:
    if outcome.wrong:
        return False
    for output in outcome.outputs:
        if output.error.mismatch is not None or output.error.max_abs:
            return False
    return True


def describe_difference(outputs: Outputs, other_outputs: Outputs) -> str:
    """Describe the output that differs most between two calls, or return ""."""
    if outputs.keys() != other_outputs.keys():
        return f"what it returns differs ({', '.join(outputs)}; {', '.join(other_outputs)})"
    worst, words = 0.0, ""
    for name, value in outputs.items():
        error = compare(value, other_outputs[name])
        if not error.max_abs:
            continue
        by = ""
        if math.isfinite(error.max_abs):
            by = f" by up to {error.max_abs:.3g}"
        if error.max_abs > worst:
            worst = error.max_abs
            words = f"{name} differs{by}"
    return words
