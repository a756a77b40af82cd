"""The results of the validation of one method: its runs, failures and verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.config.validation import Limits
from pipeline.program.inputs import InputSet
from pipeline.report import failures
from pipeline.report.method_records import UNASKED, FailureSubject
from pipeline.report.verdicts import Verdict
from pipeline.store.errors import listed
from pipeline.validate.limits import OutputLimits
from pipeline.validate.metrics import json_number
from pipeline.validate.runs import (
    JudgedCall,
    figures_to_json,
    find_wide_limits,
    find_worst,
)

_MOST_NAMED = 3  # outputs or sentences in a list


def describe_failure(failure: dict[str, Any]) -> str:
    """Return a sentence about a failure, starting with the name of its method."""
    return f"{failure['method']}: {failures.describe_failure(failure)}"


@dataclass
class MethodValidation:
    """The results of one method so far.

    Attributes:
        kind: `program`, `constant` or `unknown`.
        state: the buffers that the method changes.
        outputs: the names of its outputs.
        limits: the config's limits; `wide_limits` are those that its outputs were held to.
        limits_from: what the limits follow from: `config`, a dtype, or `quantized`.
        limits_reason: why the limits are what they are, in words.
        quantized_runs: the same calls, compared with the quantized program; empty unless the build
            quantized the method.
        quantized_reason: like `limits_reason`, for the limits of `quantized_runs`.
        quantization: the verdict on quantization, if the build quantized the method, or other
            methods whose state it reads.
        reference: the verdict on the export, if the method has a reference.
        source_is_quantized: whether the source was already quantized; then nothing compares it with
            a float program.
        ill_conditioned: where the source is ill-conditioned, in words; "" if unknown.
        movement: how much each expected output varies over the calls.
        returns_nothing: why a method without outputs is not judged, in words; "" for any other.
        random: how a method declared random was judged, in words; "" for any other.
        left_out: what there was no time for: input sets, kinds of input sets, `ALL` or `LATENCY`;
            or `UNASKED`.
        skipped: generated input sets and sequences that were not run or don't count, each with a
            self-contained reason.
        not_run: why this machine can't run the method; only its declarations were compared then.
        seconds: the package's running time over all runs.
        device_limits: the limits for a device that can run the method if this machine can't.
        failing: the calls of the first sequence that failed.
        failing_limits: the limits on each output of the last of those calls.
        fails_quantized: whether those calls differ from the quantized program rather than from the
            source.
    """

    method: str
    kind: str = "program"
    state: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    limits: Mapping[str, float | None] = field(default_factory=dict)
    limits_from: str = ""
    limits_reason: str = ""
    quantized_runs: list[JudgedCall] = field(default_factory=list)
    quantized_reason: str = ""
    quantization: dict[str, Any] | None = None
    reference: dict[str, Any] | None = None
    source_is_quantized: bool = False
    ill_conditioned: str = ""
    movement: Sequence[dict[str, Any]] = ()
    returns_nothing: str = ""
    random: str = ""
    left_out: list[str] = field(default_factory=list)
    runs: list[JudgedCall] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    not_run: str = ""
    seconds: float = 0.0
    device_limits: list[Limits] = field(default_factory=list)
    failing: Sequence[tuple[str, InputSet]] = field(default=(), repr=False)
    failing_limits: Sequence[Limits] = ()
    fails_quantized: bool = False

    def fail(
        self,
        fault: str,
        inputs: str = "",
        output: str = "",
        about: FailureSubject = "",
        of_limit: float | None = None,
    ) -> None:
        self.failures.append(
            {
                "method": self.method,
                "what": fault,
                "inputs": inputs,
                "output": output,
                "about": about,
                "of_limit": json_number(of_limit),
            }
        )

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def verdict(self) -> Verdict:
        """The verdict on the lowering: does the package compute what was lowered?"""
        if self._lowering_failures():
            return "failed"
        if self.not_run or not (self.runs or self.random):
            return "not run"
        if self.uninformative:
            return "not judged"
        if self._unjudged_runs() and not self._is_good_enough:
            return "not judged"
        return "passed"

    def _lowering_failures(self) -> list[dict[str, Any]]:
        separate_verdicts = ("quantization", "reference")
        return [
            failure
            for failure in self.failures
            if failure["about"] not in separate_verdicts
        ]

    @property
    def uninformative(self) -> list[str]:
        """Why comparisons of outputs could not have failed, one sentence each."""
        outputs_by_reason: dict[str, list[str]] = {}
        for record in self.movement:
            if not record["judged"]:
                reason = record["reason"].removeprefix(record["output"])
                outputs_by_reason.setdefault(reason, []).append(record["output"])
        sentences = [
            _join_outputs(names, rest) for rest, names in outputs_by_reason.items()
        ]
        return [*sentences, *filter(None, [self.returns_nothing])]

    @property
    def _is_good_enough(self) -> bool:
        """Whether the package itself meets the config's accuracy limits against the float program.

        If so, it doesn't matter how its kernels round.
        """
        return (
            self.quantization is not None and self.quantization["verdict"] == "passed"
        )

    @property
    def verdict_reason(self) -> str:
        """Why the lowering has not passed; if it failed, the first failure."""
        match self.verdict:
            case "failed":
                return describe_failure(self._lowering_failures()[0])
            case "not run":
                return self.not_run or self._why_no_runs()
            case "not judged":
                return self._why_unjudged()
        return ""

    def _why_no_runs(self) -> str:
        if UNASKED in self.left_out:
            return UNASKED
        return "validate.budget was exhausted" if self.left_out else "no call was made"

    @property
    def _lowered_runs(self) -> list[JudgedCall]:
        """The calls compared with the program that was lowered."""
        return self.quantized_runs or self.runs

    def _unjudged_runs(self) -> list[JudgedCall]:
        """Return the calls that leave the method without a verdict.

        These are the calls on examples that could not be judged or, without examples, any such
        calls.
        """
        examples = [run for run in self._lowered_runs if run.is_example]
        return [run for run in examples or self._lowered_runs if run.unjudged]

    @property
    def unjudged_places(self) -> list[int]:
        """The indices of outputs whose limits leave the method without a verdict."""
        places = (place for run in self._unjudged_runs() for place in run.unjudged)
        return list(dict.fromkeys(places))

    def _why_unjudged(self) -> str:
        if self.uninformative:
            return listed(self.uninformative, _MOST_NAMED)
        runs = self._unjudged_runs()
        names = listed(
            [self.outputs[place] for place in self.unjudged_places], _MOST_NAMED
        )
        limits = [run.limits[place] for run in runs for place in run.unjudged]
        if all(isinstance(limit, OutputLimits) and limit.integers for limit in limits):
            return (  # rounding decides ties
                f"{names} differs, but rounding alone may change it; "
                "`validate: {allow: [not-judged]}` accepts that"
            )
        least = min(
            (limit.min_sqnr for limit in limits if limit.min_sqnr is not None),
            default=0.0,
        )
        share = f"{min(10 ** (-least / 20), 1.0):.0%}"
        why = self.ill_conditioned or f"rounding alone may change it by up to {share}"
        remedy = "set `atol`, `min_sqnr` or another limit that you need"
        return f"{names} differs by more than meaningful limits allow: {why}; {remedy}"

    @property
    def badness(self) -> tuple[bool, float]:
        """A sort key, worst first: failed methods, then those with no SQNR, then by SQNR."""
        return self.ok, -math.inf if (
            least := self.worst()["sqnr_db"]
        ) is None else least

    @property
    def wide_limits(self) -> Mapping[str, float | None]:
        """The widest limits that an output was held to, not counting large inputs."""
        return find_wide_limits(self.runs) or self.limits

    @property
    def wide_quantized_limits(self) -> Mapping[str, float | None]:
        """The widest limits against the quantized program; empty if nothing was quantized."""
        return find_wide_limits(self.quantized_runs)

    def worst(self) -> dict[str, float | None]:
        """Return the worst value of each figure over all outputs, or None if no output has it.

        Only examples count or, if there are none, random inputs: other inputs, and a mix of both,
        don't show how large errors typically are.
        """
        return find_worst([run for run in self.runs if run.is_example] or self.runs)

    def worst_generated(self) -> dict[str, float | None] | None:
        """Return the worst figures on generated inputs if there are examples too; else None."""
        generated = [run for run in self.runs if run.generated]
        if generated and len(generated) < len(self.runs):
            return find_worst(generated)
        return None

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "kind": self.kind,
            "ok": self.ok,
            "verdict": self.verdict,
            "verdict_reason": self.verdict_reason,
            **({"quantization": self.quantization} if self.quantization else {}),
            **({"reference": self.reference} if self.reference else {}),
            **({"source_is_quantized": True} if self.source_is_quantized else {}),
            **({"random": self.random} if self.random else {}),
            **({"movement": list(self.movement)} if self.movement else {}),
            "state": list(self.state),
            "outputs": list(self.outputs),
            "limits": dict(self.wide_limits),
            "limits_from": self.limits_from,
            "limits_reason": self.limits_reason,
            **({"quantized": self._quantized_json()} if self.quantized_runs else {}),
            "examples": sum(run.is_example for run in self.runs),
            **{name: json_number(value) for name, value in self.worst().items()},
            **(
                {"on_generated": figures_to_json(on)}
                if (on := self.worst_generated())
                else {}
            ),
            "runs": [run.to_json() for run in self.runs],
            "skipped": [
                {"origin": origin, "reason": reason} for origin, reason in self.skipped
            ],
            "failures": list(self.failures),
            "not_run": self.not_run,
            "left_out": list(self.left_out),
        }

    def _quantized_json(self) -> dict[str, Any]:
        return {
            "limits": dict(self.wide_quantized_limits),
            "limits_reason": self.quantized_reason,
            **figures_to_json(find_worst(self.quantized_runs)),
        }


def _join_outputs(names: Sequence[str], reason: str) -> str:
    """Put the names of the outputs that share a reason before it, if it begins with a space.

    Any other reason is a sentence of its own, and is returned unchanged.
    """
    if not reason.startswith(" "):
        return reason
    subject = names[0] if len(names) == 1 else f"each of {listed(names, _MOST_NAMED)}"
    return f"{subject}{reason}"
