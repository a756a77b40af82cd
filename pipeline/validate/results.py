"""The results of a validation: of a package, a method, a call, and each failure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.config.validation import Limits
from pipeline.program.inputs import InputSet
from pipeline.report.records import UNASKED, FailureSubject
from pipeline.validate.limits import FIGURES, widest
from pipeline.validate.metrics import OutputError, json_number


@dataclass(frozen=True)
class Failure:
    """A failure of a method, as the record has it (`FailureRecord`)."""

    method: str
    what: str
    inputs: str = ""
    output: str = ""
    about: FailureSubject = ""

    @property
    def sentence(self) -> str:
        place = ", ".join(part for part in (self.inputs, self.output) if part)
        return f"{self.method}: {place}{place and ': '}{self.what}"


@dataclass(frozen=True)
class Run:
    """One call on the input set `origin`, which was `generated` or is real.

    `case` is the kind of a generated set that is not random (cases.py). `step` counts the calls of
    a sequence from 1, which `sequence` names and which began on a package just opened; it is 0 for
    a method without state. `limits` are those that each output was held to, and `of_limits` how
    far it went, as `limits.Judgement` has it.
    """

    origin: str
    outputs: tuple[OutputError, ...]
    step: int = 0
    sequence: str = ""
    generated: bool = False
    case: str = ""
    limits: tuple[Limits, ...] = ()
    of_limits: tuple[float | None, ...] = ()

    def to_json(self) -> dict[str, Any]:
        others = {"limits", "of_limits"}
        record = {name: value for name, value in vars(self).items() if name not in others}
        outputs = [error.to_json() for error in self.outputs]
        for output, ratio in zip(outputs, self.of_limits, strict=False):
            output["of_limit"] = json_number(ratio)
        return {
            **record,
            "outputs": outputs,
            "limits": [each.model_dump(exclude_defaults=True) for each in self.limits],
        }


@dataclass
class MethodValidation:
    """The results of one method, as far as they are known.

    Attributes:
        kind: `program`, `constant` or `unknown`.
        state: the buffers that it changes.
        outputs: the names of its outputs.
        limits: those of the config; `wide_limits` are those that its outputs were held to.
        limits_from: what they follow: `config`, a dtype, or `quantized`.
        limits_reason: why they are what they are, for people.
        quantized_runs: the same calls, compared with the quantized program; of a method that was
            quantized on the way.
        quantized_reason: as `limits_reason`, of those.
        left_out: input sets, kinds of them, `ALL` and `LATENCY`, for which there was no time; or
            `UNASKED`.
        skipped: the generated input sets, and sequences, that were not run or count for nothing,
            and why, in words that stand alone.
        not_run: why this machine can't run it; then only its declarations were compared.
        seconds: the package's running time over all runs.
        device_limits: those for a device that can run it, where this machine can't.
        failing: the calls of the first sequence that failed.
        failing_limits: of each output of the last of them.
        fails_quantized: whether they depart from the quantized program, and not from the source.
    """

    method: str
    kind: str = "program"
    state: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    limits: Mapping[str, float | None] = field(default_factory=dict)
    limits_from: str = ""
    limits_reason: str = ""
    quantized_runs: list[Run] = field(default_factory=list)
    quantized_reason: str = ""
    left_out: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    not_run: str = ""
    seconds: float = 0.0
    device_limits: list[Limits] = field(default_factory=list)
    failing: Sequence[tuple[str, InputSet]] = field(default=(), repr=False)
    failing_limits: Sequence[Limits] = ()
    fails_quantized: bool = False

    def fail(
        self, what: str, inputs: str = "", output: str = "", about: FailureSubject = ""
    ) -> None:
        self.failures.append(Failure(self.method, what, inputs, output, about))

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def badness(self) -> tuple[bool, float]:
        """By which methods are ordered, the worst first: failed ones, then by their SQNR."""
        return self.ok, -math.inf if (least := self.worst()["sqnr_db"]) is None else least

    @property
    def wide_limits(self) -> Mapping[str, float | None]:
        """The widest limits that an output was held to, but on large inputs."""
        return _wide_limits(self.runs) or self.limits

    @property
    def tolerances(self) -> tuple[float, float]:
        """The absolute and the relative tolerance for a runtime on a device; without an absolute
        limit, twice the greatest error."""
        held = widest(self.device_limits) if self.device_limits else self.wide_limits
        least, greatest = held["atol"], self.worst()["max_abs"] or 0.0
        return 2 * greatest if least is None else least, held["rtol"] or 0.0

    @property
    def wide_quantized_limits(self) -> Mapping[str, float | None]:
        """The same, against the quantized program; empty where nothing was quantized."""
        return _wide_limits(self.quantized_runs)

    def worst(self) -> dict[str, float | None]:
        """Return each figure of the output that is worst by it; None where no output has it.

        They are those of real and random inputs, where there are any: others say nothing of how
        large an error is as a rule.
        """
        return _worst(self.runs)

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "kind": self.kind,
            "ok": self.ok,
            "state": list(self.state),
            "outputs": list(self.outputs),
            "limits": dict(self.wide_limits),
            "limits_from": self.limits_from,
            "limits_reason": self.limits_reason,
            **({"quantized": self._quantized_json()} if self.quantized_runs else {}),
            **{name: json_number(value) for name, value in self.worst().items()},
            "runs": [run.to_json() for run in self.runs],
            "skipped": [{"origin": origin, "reason": reason} for origin, reason in self.skipped],
            "failures": [asdict(failure) for failure in self.failures],
            "not_run": self.not_run,
            "left_out": list(self.left_out),
        }

    def _quantized_json(self) -> dict[str, Any]:
        return {
            "limits": dict(self.wide_quantized_limits),
            "limits_reason": self.quantized_reason,
            **{name: json_number(value) for name, value in _worst(self.quantized_runs).items()},
        }


def _wide_limits(runs: Sequence[Run]) -> dict[str, float | None]:
    held = [limits for run in runs if run.case != "large" for limits in run.limits]
    return widest(held) if held else {}


def _worst(runs: Sequence[Run]) -> dict[str, float | None]:
    """Return each figure of the output that is worst by it (`MethodValidation.worst`)."""
    usual = [run for run in runs if not run.case] or runs
    errors = [error for run in usual for error in run.outputs]
    found: dict[str, float | None] = {"max_abs": max((e.max_abs for e in errors), default=None)}
    for name, (_, limit) in FIGURES.items():
        figures = [figure for e in errors if (figure := getattr(e, name)) is not None]
        worst = max if limit.startswith("max_") else min
        found[name] = worst(figures, default=None)
    return found


@dataclass(frozen=True)
class Validation:
    """The results of a package; `problems` are sentences about it as a whole."""

    package: str
    methods: tuple[MethodValidation, ...]
    problems: tuple[str, ...]
    settings: Mapping[str, float | None]

    @property
    def is_complete(self) -> bool:
        """Return whether nothing that was asked for was left out."""
        return not any({*method.left_out} - {UNASKED} for method in self.methods)

    @property
    def failures(self) -> tuple[str, ...]:
        """The sentences about the package and its methods."""
        own = (failure.sentence for method in self.methods for failure in method.failures)
        return (*self.problems, *own)

    @property
    def ok(self) -> bool:
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """Return strict JSON, equal for equal packages but for `seconds`."""
        methods = [method.to_json() for method in self.methods]
        return {
            "package": self.package,
            "ok": self.ok,
            "failures": list(self.failures),
            "settings": dict(self.settings),
            "methods": methods,
            "worst": {method["method"]: method["max_abs"] for method in methods},
            "seconds": {method.method: method.seconds for method in self.methods},
        }
