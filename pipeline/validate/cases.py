"""Inputs of a kind for which other limits hold than for random ones; features make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.config.validation import Limits
from pipeline.program.inputs import InputSet
from pipeline.store.reasons import reason
from pipeline.validate.limits import drop_limits_of_noise, scale_limits


@dataclass(frozen=True, eq=False)
class InputCase(InputSet):
    """An input set of the kind `case`. A `growth` that is not empty says how many times as large
    as on ordinary inputs each output of the source is."""

    case: str = ""
    growth: tuple[float, ...] = ()

    def ease(self, limits: Limits, output: int, expected: Any) -> Limits:
        """Return the limits that an output of this case is held to."""
        if self.case in ("zeros", "expanded"):
            return drop_limits_of_noise(limits, expected)
        if not self.growth:
            return limits
        return scale_limits(limits, self.growth[output])


def describe_source_error(error: Exception) -> str:
    """Describe what an operator of the source program raised."""
    return f"the source program itself fails: {type(error).__name__}: {reason(error)}"
