"""The results of a validation: of a package, a method, a call, and each failure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.program.inputs import InputSet
from pipeline.validate.limits import FIGURES
from pipeline.validate.metrics import OutputError, json_number

LACKS = "the package lacks this method"  # how such a failure begins


@dataclass(frozen=True)
class Failure:
    """A failure of a method; `inputs` and `output` are empty where it is of the whole method."""

    method: str
    what: str
    inputs: str = ""
    output: str = ""

    @property
    def sentence(self) -> str:
        place = ", ".join(part for part in (self.inputs, self.output) if part)
        return f"{self.method}: {place}{place and ': '}{self.what}"


@dataclass(frozen=True)
class Run:
    """One call on the input set `origin`, which was `generated` or is real.

    `case` is the kind of a generated set that is not random (cases.py). `step` counts the calls of
    a sequence from 1, which `sequence` names and which began on a package just opened; it is 0 for
    a method without state.
    """

    origin: str
    outputs: tuple[OutputError, ...]
    step: int = 0
    sequence: str = ""
    generated: bool = False
    case: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"outputs": [error.to_json() for error in self.outputs]}


@dataclass
class MethodValidation:
    """The results of one method, as far as they are known.

    Attributes:
        kind: `program`, `constant` or `unknown`.
        state: the buffers that it changes.
        outputs: the names of its outputs.
        limits: those that its outputs were held to.
        skipped: the generated input sets, and sequences, that were not run or count for nothing,
            and why, in words that stand alone.
        not_run: why this machine can't run it; then only its declarations were compared.
        seconds: the package's running time over all runs.
        failing: the calls of the first sequence that failed.
    """

    method: str
    kind: str = "program"
    state: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    limits: Mapping[str, float | None] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    not_run: str = ""
    seconds: float = 0.0
    failing: Sequence[tuple[str, InputSet]] = field(default=(), repr=False)

    def fail(self, what: str, inputs: str = "", output: str = "") -> None:
        self.failures.append(Failure(self.method, what, inputs, output))

    @property
    def ok(self) -> bool:
        return not self.failures

    def worst(self) -> dict[str, float | None]:
        """Return each figure of the output that is worst by it; None where no output has it.

        They are those of real and random inputs, where there are any: others say nothing of how
        large an error is as a rule.
        """
        usual = [run for run in self.runs if not run.case] or self.runs
        errors = [error for run in usual for error in run.outputs]
        found: dict[str, float | None] = {"max_abs": max((e.max_abs for e in errors), default=0.0)}
        for name, (_, limit) in FIGURES.items():
            figures = [figure for e in errors if (figure := getattr(e, name)) is not None]
            worst = max if limit.startswith("max_") else min
            found[name] = worst(figures, default=None)
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "kind": self.kind,
            "ok": self.ok,
            "state": list(self.state),
            "outputs": list(self.outputs),
            "limits": dict(self.limits),
            **{name: json_number(value) for name, value in self.worst().items()},
            "runs": [run.to_json() for run in self.runs],
            "skipped": [{"origin": origin, "reason": reason} for origin, reason in self.skipped],
            "failures": [asdict(failure) for failure in self.failures],
            "not_run": self.not_run,
        }


@dataclass(frozen=True)
class Validation:
    """The results of a package; `problems` are sentences about it as a whole."""

    package: str
    methods: tuple[MethodValidation, ...]
    problems: tuple[str, ...]
    settings: Mapping[str, float | None]

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
