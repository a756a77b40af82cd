"""Chooses the limits that the outputs of a method are held to, call by call."""

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
    """The limits of an output by what rounding does to it.

    Attributes:
        wide: an error beyond it can't be rounding: the output is wrong.
        capped: the same, and no wider than a share of the signal: within it, the output is right.
    """

    wide: Limits
    capped: Limits


class CallLimits:
    """The limits of a method's outputs: of the config, or else by what rounding does to them.

    Attributes:
        config_limits: those of the config; without tolerances they are derived.
        most_share: the greatest share of the signal that a derived limit may be.
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
        """Return whether the config leaves the tolerances to what the program computes in."""
        return self.config_limits.atol is None

    def by_rounding(
        self, expected: Values, rounded: Sequence[Values], case: str = ""
    ) -> list[DerivedLimits]:
        """Return the limits of outputs by what rounding does to them on these inputs.

        Args:
            rounded: the outputs of each run with values rounded anew.
            case: the kind of the inputs; large ones don't tell what is usual.
        """
        derived_limits = []
        for place, value in enumerate(expected):
            usual = max(self._usual[place], greatest_magnitude(value))
            # Large inputs would raise what later outputs are compared with.
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
        """Return the limits of outputs that the config sets, for these inputs."""
        return [
            ease_limits(self.config_limits, inputs, place, value)
            for place, value in enumerate(expected)
        ]

    def with_config(self, derived: Sequence[DerivedLimits]) -> list[DerivedLimits]:
        """Return derived limits, with those that the config sets in the place of each. Where it
        sets any, it says what is good enough: nothing is capped."""
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
        """Return the limits of outputs against the quantized program's. Where the config sets
        tolerances, which the package itself is held to, it fails only beyond the noise that
        quantization makes: some backends quantize what the program does not."""
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
        """Return the limits of outputs against the source's for a device that can run what this
        machine can't; of a quantized method, twice what quantization alone makes."""
        if not self.derived:
            return [self.config_limits]
        if quantized is None:
            return [limits.wide for limits in self.by_rounding(expected, rounded)]
        pairs = zip(quantized, expected, strict=True)
        return [Limits(atol=2 * compare(q, e).max_abs, rtol=0.0) for q, e in pairs]
