"""The field `metrics` of `validate`."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from pipeline.backends.options import Options, rule
from pipeline.config.fields import (
    SHARE_PATTERN,
    DeviceName,
    MethodName,
    Name,
    Portion,
)


def _parse_figure(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(SHARE_PATTERN, value):
        # As a decimal: 0.7 / 100 is not 0.007 in floating point.
        value = float(Decimal(value.rstrip("% ")) / 100)
    # Python's booleans are integers, but `max: yes` must not pass as a limit.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise rule("must be a number such as 0.71, or a percentage such as 71%")
    return float(value)


_Figure = Annotated[
    float,
    BeforeValidator(_parse_figure),
    WithJsonSchema(
        {"anyOf": [{"type": "number"}, {"type": "string", "pattern": SHARE_PATTERN}]}
    ),
]


class MetricLimits(Options):
    """The limits for one value of a metric. A value without limits is only reported."""

    min: _Figure | None = None
    """The minimum value of the metric for the package. `71%` is 0.71.

    Example: 0.71
    """
    max: _Figure | None = None
    """The maximum value of the metric for the package, if lower is better, as for a word error
    rate.

    Example: 0.08
    """
    max_drop: Portion | None = None
    """The most that the package's value may drop below the source's, on the same samples and in the
    metric's own unit. `0.5%` is 0.005; for an accuracy, this is half a percentage point.

    Example: 0.5%
    """
    max_rise: Portion | None = None
    """The most that the package's value may rise above the source's, if lower is better.

    Example: 0.02
    """
    samples: int = Field(default=1000, ge=1, le=10_000_000)
    """The maximum number of samples to run; `data` may yield more samples than that, or never end.

    Example: 5000
    """
    method: MethodName | None = None
    """The method to call with the inputs, if the package has several and the metric's file has no
    `predict`.

    Example: classify
    """
    device: DeviceName | None = None
    """The device from `validate.devices` that runs the package; by default, ExecuTorch's Python
    bindings run it on this machine.

    Example: native
    """


def add_fields() -> dict[str, tuple[Any, Any]]:
    """Return the field that metrics add to `validate`."""
    text = (
        "Metrics by name, each with its limits: `top1` is the metric in `metrics/top1.py`, and "
        "`quality.wer` is the value `wer` of the dict that `metrics/quality.py` returns. A limit "
        "is met or broken only if the whole 95 % confidence interval is on one side of it; "
        "otherwise the package is not judged."
    )
    # Not part of the config's key: `planning` adds what affects the run to the keys of validations,
    # and judging against limits runs nothing.
    field: Any = Field(
        default={},
        description=text,
        exclude=True,
        examples=[{"top1": {"min": 0.71, "max_drop": "0.5%"}}],
    )
    return {"metrics": (dict[Name, MetricLimits], field)}
