"""Judges the outputs of a call against the program that was lowered.

For a quantized method, also judges them against the float program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.export import ExportedProgram

from pipeline.config.validation import Limits
from pipeline.moments import call_all
from pipeline.program.inputs import InputSet
from pipeline.report.method_records import FailureSubject
from pipeline.validate.call_limits import CallLimits, DerivedLimits
from pipeline.validate.default_limits import MOST_SHARE_QUANTIZED
from pipeline.validate.limits import check_limits, judge_output
from pipeline.validate.method_result import MethodValidation
from pipeline.validate.metrics import OutputError, compare
from pipeline.validate.references import References
from pipeline.validate.runs import JudgedCall

_OF_QUANTIZED = ", against its quantized program"
# How often to run with differently rounded values before an output fails for an error that two such
# runs don't explain. A near tie seldom flips an integer; after many kinks (relu6, hardsigmoid,
# hardswish) rounding seldom changes an output, but then by a large amount.
_MORE_RUNS = 8
_FEW = 32  # values of a quantized program's output whose noise two runs don't show


@dataclass
class Call:
    """The outputs of the package and of its source on the same inputs.

    Attributes:
        where: names the inputs in messages.
        as_it_lies: as in `Source.run`.
        hint: appended to the message about an exceeded limit.
    """

    actual: Sequence[Any]
    expected: Sequence[Any]
    inputs: InputSet
    run: JudgedCall
    where: str
    as_it_lies: bool = False
    hint: str = ""


class CallJudge:
    """Judges the calls of a method, and adds them to its result.

    Attributes:
        quantization: judges the calls against the float program if the method is quantized by this
            build, or reads state of such a method, and a feature does that
            (`moments.Feature.judge_quantization`); else None.
        has_examples: whether somebody provided its examples for validation: the arguments of an
            export are mostly random numbers.
        for_devices: whether other devices, too, are held to the limits of the calls.
        unjudged: the first inputs on which an output could not be judged.
        movement: judges of how much the expected outputs vary over the calls
            (`moments.Feature.judge_movement`).

    Args:
        lowered: the program that was lowered.
    """

    def __init__(
        self,
        result: MethodValidation,
        held_to: CallLimits,
        lowered: ExportedProgram,
        has_examples: bool = True,
        for_devices: bool = False,
    ) -> None:
        self.result = result
        self.held_to = held_to
        self.quantization: Any = None
        self.has_examples = has_examples
        self.for_devices = for_devices
        self.unjudged: InputSet | None = None
        self.movement: list[Any] = list(call_all("judge_movement", lowered))

    def judge(
        self, call: Call, references: References, calls: Sequence[tuple[str, InputSet]]
    ) -> Sequence[Any]:
        """Judge a call: compare its outputs with the source's and, if any, the quantized program's.

        A float method is compared with its own program, on state that quantized programs write.

        Args:
            calls: the calls since the package was opened, this one last.

        Returns:
            The flat outputs of the program that was lowered.
        """
        inputs = call.inputs
        run = call.run
        quantized = references.run_quantized(inputs, call.as_it_lies)
        lowered = call.expected if quantized is None else quantized
        errors = compare_outputs(call.actual, lowered)
        by_rounding = self._limits_by_rounding(call, lowered, errors, references)
        loss = None
        if quantized is not None and self.quantization is not None:
            loss = self.quantization.judge_call(call, calls, lowered)
        if quantized is None or self.result.limits_from != "quantized":
            limits = self._source_limits(call, lowered, by_rounding)
            judged_run = self._judge_outputs(call, lowered, errors, limits, call.hint)
            self.result.runs.append(judged_run)
        else:
            self.result.runs.append(loss or _leave_unlimited(call))
            limits = self.held_to.against_quantized(call.expected, lowered, by_rounding)
            judged_run = self._judge_outputs(
                call, lowered, errors, limits, _OF_QUANTIZED, "quantized"
            )
            self.result.quantized_runs.append(judged_run)
        self.add_movement(lowered, judged_run.limits, inputs, run.case)
        return lowered

    def _limits_by_rounding(
        self,
        call: Call,
        lowered: Sequence[Any],
        errors: Sequence[OutputError],
        references: References,
    ) -> list[DerivedLimits]:
        """Return the limits derived from the effect of rounding, measured only where it matters.

        Rounding can only widen limits. So further runs with rounded values change no verdict if the
        errors are within the limits so far, and if by these no output moves for the first time.
        """
        inputs, run = call.inputs, call.run
        runs = references.run_rounded(inputs, call.as_it_lies, run.step)
        # Limits of the config are compared with the noise; the errors of other devices are unknown.
        may_stop = self.held_to.derived and not self.for_devices
        rounded: list[Any] = []
        while True:
            by_rounding = self.held_to.by_rounding(lowered, rounded, run.case)
            if (
                may_stop
                and not self._exceeds(call, lowered, errors, by_rounding)
                and not any(
                    judge.would_notice(lowered, by_rounding) for judge in self.movement
                )
            ):
                return by_rounding
            if (outputs := next(runs, None)) is None:
                break
            rounded.append(outputs)
        # If other inputs failed already, more runs (16 calls of the source) can't save the package.
        failed = any(
            failure["about"] in ("", "quantized") for failure in self.result.failures
        )
        may_round_again = rounded and not failed and not references.source.state
        # For quantized programs, more runs would only widen the noise, except of integers and of
        # few values: in 14 % of cases, two runs of 8 int8 values show less noise than kernels have.
        only_uncertain = self.held_to.most_share >= MOST_SHARE_QUANTIZED
        if may_round_again and self._exceeds(
            call, lowered, errors, by_rounding, only_uncertain
        ):
            rounded += references.run_rounded_again(inputs, call.as_it_lies, _MORE_RUNS)
            by_rounding = self.held_to.by_rounding(lowered, rounded, run.case)
        return by_rounding

    def add_movement(
        self,
        expected: Sequence[Any],
        limits: Sequence[Limits],
        inputs: InputSet,
        case: str = "",
    ) -> None:
        """Pass a call's expected outputs, from the source or quantized program, to features."""
        for movement in self.movement:
            movement.add(expected, limits, inputs, case)

    def _source_limits(
        self, call: Call, lowered: Sequence[Any], by_rounding: Sequence[DerivedLimits]
    ) -> list[DerivedLimits]:
        """Return the limits of a method that this build doesn't quantize."""
        if self.held_to.derived:
            return self.held_to.with_config(by_rounding)
        config_limits = self.held_to.of_config(call.inputs, lowered)
        return [DerivedLimits(limits, limits) for limits in config_limits]

    def _judge_outputs(
        self,
        call: Call,
        expected: Sequence[Any],
        errors: tuple[OutputError, ...],
        limits: Sequence[DerivedLimits],
        suffix: str,
        about: FailureSubject = "",
    ) -> JudgedCall:
        """Judge outputs: wrong beyond the wide limits, right within the capped limits.

        Between the two, an output counts as not judged.
        """
        outputs = zip(errors, call.actual, expected, limits, strict=True)
        unjudged = []
        applied_limits = []
        for place, (error, actual, reference, derived) in enumerate(outputs):
            applied = derived.capped
            is_capped = derived.capped != derived.wide
            if is_capped and check_limits(error, actual, reference, derived.capped):
                unjudged.append(place)
                applied = derived.wide
            applied_limits.append(applied)
        # The first such inputs are enough to find where the source is ill-conditioned.
        if unjudged and self.unjudged is None:
            self.unjudged = call.inputs
        judged_run = replace(call.run, outputs=errors, limits=tuple(applied_limits))
        ratios = self.fail_beyond(judged_run, call, expected, suffix, about)
        return replace(judged_run, of_limits=ratios, unjudged=tuple(unjudged))

    def fail_beyond(
        self,
        run: JudgedCall,
        call: Call,
        expected: Sequence[Any],
        suffix: str,
        about: FailureSubject,
    ) -> tuple[float | None, ...]:
        """Record a failure for each exceeded limit; return each output's error-to-limit ratio."""
        names = self.result.outputs
        outputs = zip(
            names, run.outputs, call.actual, expected, run.limits, strict=True
        )
        ratios = []
        for name, error, a, e, limits in outputs:
            faults, of_limit = judge_output(error, a, e, limits)
            ratios.append(of_limit)
            for fault in faults:
                self.result.fail(fault + suffix, call.where, name, about, of_limit)
        return tuple(ratios)

    def _exceeds(
        self,
        call: Call,
        expected: Sequence[Any],
        errors: Sequence[OutputError],
        limits: Sequence[DerivedLimits],
        only_uncertain: bool = False,
    ) -> bool:
        """Return whether an error of an output is larger than its limits allow."""
        outputs = zip(errors, call.actual, expected, limits, strict=True)
        for error, actual, reference, derived in outputs:
            if only_uncertain and not _is_uncertain(reference):
                continue
            if check_limits(error, actual, reference, derived.capped):
                return True
        return False


def _leave_unlimited(call: Call) -> JudgedCall:
    """Compare the outputs of a call without limits."""
    errors = compare_outputs(call.actual, call.expected)
    unlimited = (Limits(),) * len(errors)
    return replace(
        call.run, outputs=errors, limits=unlimited, of_limits=(None,) * len(errors)
    )


def _is_uncertain(value: Any) -> bool:
    return isinstance(value, Tensor) and (
        value.numel() <= _FEW or not value.is_floating_point()
    )


def compare_outputs(
    actual: Sequence[Any], expected: Sequence[Any]
) -> tuple[OutputError, ...]:
    """Measure the error of each output of a call."""
    pairs = zip(actual, expected, strict=True)
    return tuple(compare(value, reference) for value, reference in pairs)
