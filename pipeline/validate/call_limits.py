"""Chooses the limits on the outputs of a method, call by call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from pipeline.config.validation import Limits
from pipeline.program.inputs import InputSet
from pipeline.validate.cases import ease_limits
from pipeline.validate.default_limits import MOST_SHARE, cap_limits, limits_of_rounding
from pipeline.validate.limits import OutputLimits, drop_limits_of_noise
from pipeline.validate.metrics import compare, greatest_magnitude

MARGIN_DB = 3.0  # twice the noise
Values = Sequence[Any]


class DerivedLimits(NamedTuple):
    """The limits on an output, derived from the effect of rounding.

    Attributes:
        wide: an error beyond them can't be due to rounding, so the output is wrong.
        capped: the same limits, capped to a share of the signal; within them, the output is right.
    """

    wide: Limits
    capped: Limits


class CallLimits:
    """The limits on a method's outputs, from the config or derived from the effect of rounding.

    Attributes:
        config_limits: the config's limits; if they set no tolerances, limits are derived.
        most_share: the largest derived limit, as a share of the signal.
        least_units: as in `limits_of_rounding`.
    """

    def __init__(
        self,
        config_limits: Limits,
        most_share: float = MOST_SHARE,
        least_units: int | None = None,
    ) -> None:
        self.config_limits = config_limits
        self.most_share = most_share
        self.least_units = least_units
        self._usual: dict[int, float] = defaultdict(float)

    @property
    def derived(self) -> bool:
        """Whether tolerances are derived from the program's dtypes because the config sets none."""
        return self.config_limits.atol is None

    def by_rounding(
        self, expected: Values, rounded: Sequence[Values], case: str = ""
    ) -> list[DerivedLimits]:
        """Return the limits on the outputs for these inputs, derived from the effect of rounding.

        Args:
            rounded: the outputs of each run with newly rounded values.
            case: the kind of the inputs; outputs of large inputs are not taken as typical
                magnitudes.
        """
        derived_limits = []
        for place, value in enumerate(expected):
            usual = max(self._usual[place], greatest_magnitude(value))
            # Large inputs would raise the magnitude that later outputs are compared with.
            if case != "large":
                self._usual[place] = usual
            rounded_values = [outputs[place] for outputs in rounded]
            wide = limits_of_rounding(value, rounded_values, usual, self.least_units)
            capped = cap_limits(wide, value, usual, self.most_share)
            derived_limits.append(
                DerivedLimits(
                    drop_limits_of_noise(wide, value),
                    drop_limits_of_noise(capped, value),
                )
            )
        return derived_limits

    def of_config(self, inputs: InputSet, expected: Values) -> list[Limits]:
        """Return the config's limits on the outputs, adjusted to these inputs."""
        return [
            ease_limits(self.config_limits, inputs, place, value)
            for place, value in enumerate(expected)
        ]

    def with_config(self, derived: Sequence[DerivedLimits]) -> list[DerivedLimits]:
        """Return derived limits, overridden by those that the config sets.

        If the config sets any, it defines what is good enough, and nothing is capped.
        """
        tolerances = {
            name: value for name, value in self.config_limits if value is not None
        }
        if not tolerances:
            return list(derived)
        wide = [limits.wide.model_copy(update=tolerances) for limits in derived]
        return [DerivedLimits(limits, limits) for limits in wide]

    def against_quantized(
        self, expected: Values, quantized: Values, by_rounding: Sequence[DerivedLimits]
    ) -> list[DerivedLimits]:
        """Return the limits on the outputs against those of the quantized program.

        If the config sets tolerances, they apply to the package itself. Against the quantized
        program it then fails only for errors beyond the quantization noise, since some backends
        quantize operators that the program leaves in float.
        """
        if self.derived:
            return list(by_rounding)
        derived_limits = []
        for limits, e, q in zip(by_rounding, expected, quantized, strict=True):
            least = limits.wide.min_sqnr
            if least is not None and (noise := compare(q, e).sqnr_db) is not None:
                least = min(least, noise - MARGIN_DB)
            wide = OutputLimits(min_sqnr=least, integers=True, nonfinite=True)
            derived_limits.append(DerivedLimits(wide, limits.capped))
        return derived_limits

    def on_device(
        self, expected: Values, quantized: Values | None, rounded: Sequence[Values]
    ) -> list[Limits]:
        """Return the limits against the source for a device that can run what this machine can't.

        For a quantized method, they are twice the error that quantization alone causes.
        """
        if not self.derived:
            return [self.config_limits]
        if quantized is None:
            return [limits.wide for limits in self.by_rounding(expected, rounded)]
        pairs = zip(quantized, expected, strict=True)
        return [Limits(atol=2 * compare(q, e).max_abs, rtol=0.0) for q, e in pairs]
