"""The key `tune` of a package config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from pipeline.backends import Options
from pipeline.backends.options import rule
from pipeline.config.fields import SHARE_PATTERN
from pipeline.features.tuning.figures import DIRECTIONS, is_time, split_limit
from pipeline.store.errors import did_you_mean
from pipeline.store.sizes import parse_size

if TYPE_CHECKING:  # this module adds a field to it
    from pipeline.config.models import PackageConfig


def _check_figure(name: str) -> str:
    """Return the name of a figure; a name with a dot is looked up in the report of a trial."""
    if name not in DIRECTIONS and "." not in name:
        raise rule(f"must be a figure; {did_you_mean(name, DIRECTIONS)}")
    return name


def _check_limit_name(name: str) -> str:
    """Return the name of a limit, which must name a figure."""
    side, figure = split_limit(name)
    if not side:
        raise rule(f"must be min_<figure> or max_<figure>, such as min_{name}")
    _check_figure(figure)
    return name


def _check_limit(value: float | str) -> float | str:
    """Return a limit, which must be a number, a share or a size; a share becomes a number."""
    if isinstance(value, float) or parse_size(value) is not None:
        return value
    if re.fullmatch(SHARE_PATTERN, value):
        # As a decimal: 0.7 / 100 is not 0.007 in floating point.
        return float(Decimal(value.rstrip("% ")) / 100)
    raise rule("must be a number, a share such as 90%, or a size such as 40MB")


def _check_limits(limits: dict[str, float | str]) -> dict[str, float | str]:
    """Return limits, which must have values that their figures can have."""
    for name, value in limits.items():
        _, figure = split_limit(name)
        is_share = figure in ("delegated_nodes", "delegated_ops")
        is_size = figure in ("size", "planned_memory") or "." in figure
        if isinstance(value, str):
            if is_time(figure) or not is_size:
                raise _mistake(
                    f"{name} can't be a size", f"is '{value}', write a number"
                )
        elif is_share and value > 1:
            raise _mistake(f"{name} can't exceed 1", f"is {value:g}, write 90% or 0.9")
    return limits


def _mistake(fault: str, remedy: str) -> PydanticCustomError:
    return PydanticCustomError("mistake", "mistake", {"what": fault, "known": remedy})


def _text(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern})


# A mistake in a path is reported with the whole space.
SettingPath = Annotated[str, _text(r"^(methods|defaults|emit)(\.[^.\s]+)+$")]
FigureName = Annotated[str, AfterValidator(_check_figure), _text(r"^\S+$")]
LimitName = Annotated[str, AfterValidator(_check_limit_name), _text(r"^(min|max)_\S+$")]
Limit = Annotated[float | str, AfterValidator(_check_limit)]
Limits = Annotated[dict[LimitName, Limit], AfterValidator(_check_limits)]


class TuneConfig(Options):
    """The alternatives that `doit tune` tries for a package, and the figures it judges them by."""

    space: dict[
        SettingPath, Annotated[tuple[Any, ...], Field(strict=False, min_length=1)]
    ] = Field(min_length=1)
    """Alternative values for settings of this config: a mapping from each setting's path to a list
    of values. A path begins with `methods`, `defaults` or `emit`; `null` leaves the setting out.

    Example: {methods.classify.quantize: [null, {quantizer: xnnpack, per_channel: true}]}
    """
    objectives: dict[FigureName, Literal["min", "max"]] = Field(
        default={"size": "min", "sqnr": "max"}, min_length=1
    )
    """The figures to minimize (`min`) or maximize (`max`): size, delegated_nodes, delegated_ops,
    planned_memory, sqnr, max_abs, latency; latency_p95.<device> and similar figures for a device of
    `validate.devices`; or any other figure, by its path in report.json. The first figure decides
    which trial is best.

    Example: {size: min, sqnr: max}
    """
    limits: Limits = Field(default={})
    """Limits on figures: `min_<figure>` or `max_<figure>`. A trial that breaks a limit is never the
    best.

    Example: {min_sqnr: 20, max_size: 10MB}
    """
    trials: int = Field(default=20, ge=1, le=10_000)
    """The maximum number of variants to try. If the space contains more variants, an Optuna sampler
    chooses which to try; otherwise, all are tried.

    Example: 40
    """
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """The seed of the sampler.

    Example: 7
    """


def add_fields() -> dict[str, tuple[Any, Any]]:
    """Return the field that this feature adds to package configs, which is part of no key."""
    text = (
        "The alternatives that `doit tune` tries, and the figures that it ranks them by. This "
        "section is not part of any cache key, so changing it doesn't rebuild anything."
    )
    field = Field(default=None, description=text, exclude=True)
    return {"tune": (TuneConfig | None, field)}


def summarize(config: PackageConfig, has_variables: bool) -> Mapping[str, Any] | None:
    """Return a mapping if a package has a space, or None."""
    return {"tuned": True} if getattr(config, "tune") else None  # noqa: B009 - mypy knows no such field
