"""Chooses the limits that the outputs of a method are held to, call by call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.config.validation import Limits
from pipeline.program.inputs import InputSet
from pipeline.validate.cases import InputCase
from pipeline.validate.default_limits import limit_noise, limits_of_rounding
from pipeline.validate.limits import OutputLimits, drop_limits_of_noise
from pipeline.validate.metrics import compare, greatest_magnitude

MARGIN_DB = 3.0  # twice the noise
Values = Sequence[Any]


@dataclass
class CallLimits:
    """The limits of a method's outputs: of the config, or else by what rounding does to them.

    Attributes:
        given: those of the config; without tolerances they are derived.
    """

    given: Limits
    _usual: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def derived(self) -> bool:
        """Return whether the config leaves the tolerances to what the program computes in."""
        return self.given.atol is None

    def by_rounding(
        self, expected: Values, rounded: Sequence[Values], case: str = ""
    ) -> list[OutputLimits]:
        """Return the limits of outputs by what rounding does to them on these inputs.

        Args:
            rounded: the outputs of each run with values rounded anew.
            case: the kind of the inputs; large ones are no measure of what is usual.
        """
        found = []
        for place, value in enumerate(expected):
            usual = max(self._usual[place], greatest_magnitude(value))
            if case != "large":
                self._usual[place] = usual
            limits = limits_of_rounding(value, [outputs[place] for outputs in rounded], usual)
            found.append(drop_limits_of_noise(limits, value))
        return found

    def against_source(
        self,
        inputs: InputSet,
        expected: Values,
        quantized: Values | None,
        by_rounding: Sequence[OutputLimits],
    ) -> list[Limits]:
        """Return the limits of outputs against the source's.

        Args:
            quantized: the outputs of the program that quantization made of it, if it did.
        """
        if not self.derived:
            case = inputs if isinstance(inputs, InputCase) else InputCase(())
            return [case.ease(self.given, n, value) for n, value in enumerate(expected)]
        if quantized is None:
            return [self._with_given(each) for each in by_rounding]
        pairs = zip(expected, quantized, by_rounding, strict=True)
        return [self._with_given(limit_noise(*each)) for each in pairs]

    def against_quantized(
        self, expected: Values, quantized: Values, by_rounding: Sequence[OutputLimits]
    ) -> list[OutputLimits]:
        """Return the limits of outputs against the quantized program's; where the config sets
        limits, only one on the noise, which may be as much as quantization makes."""
        if self.derived:
            return list(by_rounding)
        found = []
        for limits, e, q in zip(by_rounding, expected, quantized, strict=True):
            least = limits.min_sqnr
            if least is not None and (noise := compare(q, e).sqnr_db) is not None:
                least = min(least, noise - MARGIN_DB)
            found.append(OutputLimits(min_sqnr=least, integers=True))
        return found

    def on_device(
        self, expected: Values, quantized: Values | None, rounded: Sequence[Values]
    ) -> list[Limits]:
        """Return the limits of outputs against the source's for a device that can run what this
        machine can't; of a quantized method, twice what quantization alone makes."""
        if not self.derived:
            return [self.given]
        if quantized is None:
            return [*self.by_rounding(expected, rounded)]
        pairs = zip(quantized, expected, strict=True)
        return [Limits(atol=2 * compare(q, e).max_abs, rtol=0.0) for q, e in pairs]

    def _with_given(self, limits: OutputLimits) -> OutputLimits:
        """Replace limits by those that the config sets."""
        given = {name: value for name, value in self.given if value is not None}
        return limits.model_copy(update=given)
