"""The verdict on an export: does the exported program match its references?

It is separate from the verdicts on lowering and quantization, which are about the package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.export import ExportedProgram

from pipeline.config.validation import (
    Limits,
    MethodLimits,
    ValidateConfig,
    override_limits,
)
from pipeline.features.references.recording_judge import (
    CallOutcome,
    OutputOutcome,
    RecordingComparison,
)
from pipeline.features.references.recordings import RecordedCall, Recording
from pipeline.moments import call_all, has_feature
from pipeline.program.eager import Source
from pipeline.program.quantized_values import is_quantized
from pipeline.report.verdicts import Verdict
from pipeline.store.errors import PipelineError, listed
from pipeline.validate.budget import Budget
from pipeline.validate.determinism import REPEATS, outputs_of_runs
from pipeline.validate.method_result import MethodValidation, describe_failure
from pipeline.validate.metrics import json_number
from pipeline.validate.references import Lane, OpenLane

_MOST_NAMED = 3
# Up to this share of the outputs, a difference from recorded outputs may come from another kernel.
_SMALL = 0.1
_SPLIT = (
    "each method has its own state: `emit.memory_planning.share_mutable_buffers` is off"
)


class ReferenceJudge:
    """Compares a method with its recordings, and adds the verdict to the method's result.

    Each divergence is added as a failure.

    Args:
        programs: the programs of all methods of the package, since some recordings call several
            methods in sequence.
        shares_state: whether the methods of the package share state.
        settings: the settings of the package, with its limits on references and the methods that
            sample.
    """

    def __init__(
        self,
        result: MethodValidation,
        programs: Mapping[str, ExportedProgram],
        shares_state: bool,
        settings: ValidateConfig,
        budget: Budget,
        open_lane: OpenLane = Lane,
    ) -> None:
        self._result = result
        self._programs = programs
        self._shares_state = shares_state
        self._budget = budget
        self._open_lane = open_lane
        self._is_random = settings.select_random(result.method)
        self._limits = {name: _select_limits(settings, name) for name in programs}
        self._set_at = settings.find_reference_limits(result.method)
        self._origins: list[str] = []
        self._outputs: list[OutputOutcome] = []
        self._skipped: list[tuple[str, str]] = []
        self._unjudged: dict[str, None] = {}
        self._calls = 0
        self._failed = False

    def judge(self, recording: Recording) -> None:
        """Compare a recording of the method."""
        self._origins.append(recording.origin)
        self._skipped += recording.skipped
        if recording.random:
            self._judge_random(recording)
            return
        comparison = RecordingComparison(
            self._programs,
            recording.here,
            limits=self._limits,
            open_lane=self._open_lane,
        )
        for calls in recording.sequences:
            self._judge_sequence(recording, comparison, calls)

    def fail_to_read(self, path: str, error: PipelineError) -> None:
        """Record a failure for recorded outputs that can't be read."""
        self._origins.append(path)
        self._failed = True
        for line in str(error).splitlines():
            self._result.fail(line, about="reference")

    def conclude(self) -> None:
        """Add the outcome of all recordings to the method's result, if there are any."""
        if self._origins:
            self._result.reference = self._make_record()

    def _judge_sequence(
        self,
        recording: Recording,
        comparison: RecordingComparison,
        calls: Sequence[RecordedCall],
    ) -> None:
        methods = list(dict.fromkeys(call.method for call in calls))
        name = " > ".join(methods) if len(methods) > 1 else calls[0].inputs.origin
        if len(methods) > 1 and not self._shares_state:
            self._skipped.append((name, _SPLIT))
        elif not {*methods} <= self._programs.keys():
            self._skipped.append((name, "the package lacks one of the methods"))
        elif self._budget.spent:
            self._result.left_out.append(f"{name}, against {recording.origin}")
        else:
            for outcome in comparison.compare(calls):
                self._add(recording, outcome)

    def _add(self, recording: Recording, outcome: CallOutcome) -> None:
        if outcome.skipped:
            self._skipped.append((outcome.where, outcome.skipped))
            return
        self._calls += 1
        self._outputs += outcome.outputs
        if outcome.wrong:
            self._fail(recording, outcome.wrong, outcome.where)
        for output in outcome.outputs:
            if output.unjudged:
                self._unjudged[output.name] = None
            for fault in output.wrong[:1]:  # the error; the record has its consequences
                limit = self._describe_limit(recording, output)
                self._fail(
                    recording,
                    fault + limit,
                    outcome.where,
                    output.name,
                    output.of_limit,
                )

    def _describe_limit(self, recording: Recording, output: OutputOutcome) -> str:
        """Return where an exceeded limit is set, or could be set.

        It is "" if the output has another form, or is too far off for a limit.
        """
        if output.error.mismatch is not None or output.error.disagreeing:
            return ""
        distance = output.error.relative
        is_near = distance is not None and distance <= _SMALL
        limits = self._limits[self._result.method]
        # The config may set other limits; a tolerance that it doesn't set is still derived.
        is_derived = limits.atol is None and output.wrong[0].startswith(
            "absolute error"
        )
        if self._set_at and not is_derived:
            return f" ({listed(self._set_at, _MOST_NAMED)})"
        if self._set_at and is_near:
            return " (derived from rounding; set validate.reference.atol to replace it)"
        if recording.here and is_quantized(self._programs[self._result.method]):
            return (
                " (the exported program is quantized: validate.reference.min_sqnr sets what it "
                "may lose on examples)"
            )
        if recording.here or not is_near:
            return ""
        return " (set validate.reference.atol if the recording may differ by more)"

    def _fail(
        self,
        recording: Recording,
        fault: str,
        where: str,
        output: str = "",
        of_limit: float | None = None,
    ) -> None:
        self._failed = True
        place = f"; {recording.divergence}" if recording.divergence else ""
        sentence = f"the export differs from {recording.origin}: {fault}{place}"
        self._result.fail(sentence, where, output, "reference", of_limit)

    def _judge_random(self, recording: Recording) -> None:
        """Judge a random reference.

        It fails unless the method is declared to sample; then both distributions are compared.
        """
        if not self._is_random:
            self._failed = True
            fault = f"{recording.origin}: {recording.random}"
            self._result.fail(fault, about="reference")
            return
        if not recording.repeats:
            fault = "its outputs are random, but those of the exported program are not"
            if cause := recording.random.partition("; ")[2]:
                fault += f"; {cause}"
            self._fail(recording, fault, recording.sequences[0][0].inputs.origin)
            return
        call = recording.sequences[0][0]
        if not has_feature("randomness"):
            lack = 'this installation has no feature "randomness"'
            self._skipped.append((call.inputs.origin, lack))
            return
        source = Source(self._programs[call.method])
        names = list(recording.repeats[0])
        repeated_outputs = [list(outputs.values()) for outputs in recording.repeats]
        expected = outputs_of_runs(source, call.inputs, range(2 * REPEATS))
        self._calls += len(repeated_outputs)
        if len(names) != len(expected[0]):
            self._fail(
                recording,
                "the exported program returns other outputs",
                call.inputs.origin,
            )
            return
        for faults in call_all("judge_random", names, expected, repeated_outputs):
            for output, fault in faults:
                self._fail(recording, fault, call.inputs.origin, output)

    def _make_record(self) -> dict[str, Any]:
        verdict, why = self._verdict()
        errors = [output.error for output in self._outputs]
        ratios = [
            output.of_limit for output in self._outputs if output.of_limit is not None
        ]
        record: dict[str, Any] = {
            "verdict": verdict,
            "reason": why,
            "compared": self._origins,
            "calls": self._calls,
            "max_abs": json_number(
                max((error.max_abs for error in errors), default=None)
            ),
            "of_limit": json_number(max(ratios, default=None)),
            "skipped": [
                {"origin": origin, "reason": why} for origin, why in self._skipped
            ],
        }
        if self._set_at:
            limits = self._limits[self._result.method]
            record["limits"] = {
                name: value for name, value in limits if value is not None
            }
            record["limits_from"] = self._set_at
        return record

    def _verdict(self) -> tuple[Verdict, str]:
        if self._failed:
            divergences = [
                failure
                for failure in self._result.failures
                if failure["about"] == "reference"
            ]
            return "failed", describe_failure(divergences[0])
        if self._unjudged:
            names = listed([*self._unjudged], _MOST_NAMED)
            return (
                "not judged",
                f"{names} differs from the reference, but rounding alone may cause this",
            )
        if not self._calls:
            reasons = listed(
                dict.fromkeys(why for _, why in self._skipped), _MOST_NAMED
            )
            return (
                "not run",
                f"no call of the reference could be compared: {reasons or 'none was made'}",
            )
        return "passed", ""


def _select_limits(settings: ValidateConfig, method: str) -> Limits:
    """Return the limits of a method's export against its reference, its own or the package's.

    Sets both tolerances or neither.
    """
    method_limits = settings.methods.get(method, MethodLimits()).reference
    return override_limits(settings.reference, method_limits)
