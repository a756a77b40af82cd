"""What a validation finds, as records: of a package, a method, a call, a failure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.program.inputs import InputSet
from pipeline.validate.metrics import OutputError, json_number

# Figures of an `OutputError` beside the greatest error, and which of several is the worst.
_WORST = {
    "mean_abs": max,
    "p999_abs": max,
    "relative": max,
    "sqnr_db": min,
    "cosine": min,
    "agreement": min,
}

LACKS = "the package lacks this method"  # how such a failure begins


@dataclass(frozen=True)
class Failure:
    """`inputs` and `output` are empty where the failure is of the whole method."""

    method: str
    what: str
    inputs: str = ""
    output: str = ""

    @property
    def sentence(self) -> str:
        place = ", ".join(part for part in (self.inputs, self.output) if part)
        return f"{self.method}: {place}{place and ': '}{self.what}"

    def to_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Run:
    """One call on the input set `origin`, which was `generated` or is real; a generated one that is
    not random says what `case` it is (cases.py). A method with state runs in sequences,
    each on a Package just opened: `step` counts its calls from 1, `sequence` names it; otherwise 0
    and empty."""

    origin: str
    outputs: tuple[OutputError, ...]
    step: int = 0
    sequence: str = ""
    generated: bool = False
    case: str = ""

    def to_json(self) -> dict[str, Any]:
        outputs = [error.to_json() for error in self.outputs]
        return asdict(self) | {"outputs": outputs}


@dataclass(frozen=True)
class MethodValidation:
    """What became of one method. `kind` is `program`, `constant` or `unknown`; `state` names the
    buffers that it changes; `limits` is what its outputs were held to; `skipped` the generated
    input sets on which the source program itself fails, and why; `not_run` why this machine can't
    run it, so that only what it declares was looked at; `seconds` is the package's running time
    over all runs."""

    method: str
    kind: str = "program"
    state: tuple[str, ...] = ()
    limits: Mapping[str, float | None] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    failures: tuple[Failure, ...] = ()
    not_run: str = ""
    seconds: float = 0.0
    failing: tuple[tuple[str, InputSet], ...] = field(default=(), repr=False, compare=False)

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def errors(self) -> list[OutputError]:
        """Those that the method's figures are of: on real and random inputs, where there are any.
        Others say nothing of how large an error is as a rule."""
        usual = [run for run in self.runs if not run.case] or self.runs
        return [error for run in usual for error in run.outputs]

    @property
    def max_abs(self) -> float:
        return max((error.max_abs for error in self.errors), default=0.0)

    def worst(self) -> dict[str, float | None]:
        """Figures by name, each of the output that is worst by it; None where no output has it."""
        return {"max_abs": self.max_abs} | {
            name: pick(found) if (found := self._figures(name)) else None
            for name, pick in _WORST.items()
        }

    def _figures(self, name: str) -> list[float]:
        figures = (getattr(error, name) for error in self.errors)
        return [figure for figure in figures if figure is not None]

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "kind": self.kind,
            "ok": self.ok,
            "state": list(self.state),
            "limits": dict(self.limits),
            **{name: json_number(value) for name, value in self.worst().items()},
            "runs": [run.to_json() for run in self.runs],
            "skipped": [{"origin": origin, "reason": reason} for origin, reason in self.skipped],
            "failures": [failure.to_json() for failure in self.failures],
            "not_run": self.not_run,
        }


@dataclass(frozen=True)
class Validation:
    """`failures` holds a sentence for each failure, of the package and of its methods."""

    package: str
    methods: tuple[MethodValidation, ...]
    failures: tuple[str, ...]
    settings: Mapping[str, float | None]

    @property
    def ok(self) -> bool:
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """Strict JSON, equal for equal packages but for `seconds`."""
        return {
            "package": self.package,
            "ok": self.ok,
            "failures": list(self.failures),
            "settings": dict(self.settings),
            "methods": [method.to_json() for method in self.methods],
            "worst": {method.method: json_number(method.max_abs) for method in self.methods},
            "seconds": {method.method: method.seconds for method in self.methods},
        }
