"""The results of the validation of a package, method by method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.report.method_records import UNASKED
from pipeline.report.verdicts import package_verdict
from pipeline.validate.method_result import MethodValidation, describe_failure


@dataclass(frozen=True)
class Validation:
    """The results of a package; `problems` are sentences about the package as a whole."""

    package: str
    methods: tuple[MethodValidation, ...]
    problems: tuple[str, ...]
    settings: Mapping[str, float | None]

    @property
    def is_complete(self) -> bool:
        """Whether nothing that was asked for was left out."""
        return not any({*method.left_out} - {UNASKED} for method in self.methods)

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence for each failure of the package and its methods."""
        method_failures = (
            describe_failure(failure)
            for method in self.methods
            for failure in method.failures
        )
        return (*self.problems, *method_failures)

    @property
    def ok(self) -> bool:
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """Return strict JSON, which is equal for equal packages except for `seconds`."""
        methods = [method.to_json() for method in self.methods]
        return {
            "package": self.package,
            "ok": self.ok,
            "verdict": package_verdict({"ok": self.ok, "methods": methods}),
            "failures": list(self.failures),
            "settings": dict(self.settings),
            "methods": methods,
            "worst": {method["method"]: method["max_abs"] for method in methods},
            "seconds": {method.method: method.seconds for method in self.methods},
        }
