"""Gates on what users feel: one figure per device that `validate.devices` names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from pipeline.backends.options import rule
from pipeline.config.fields import OrByDevice, Portion, Size
from pipeline.features.gates.gate import GateSubject, Json, Measured


def _refuse_units(value: object) -> object:
    """Raise an error that names the unit of a number, for a text such as `5ms`."""
    if isinstance(value, str):
        raise rule("must be a number of milliseconds, such as 5.0")
    return value


def _refuse_no_device(value: object) -> object:
    """Raise an error for an empty mapping, whose gate would be checked on no device."""
    if value == {}:
        raise rule("must have a limit for each device, or one for all")
    return value


_Milliseconds = Annotated[
    float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_refuse_units)
]
# One limit for all devices of the package, or one per device.
Sizes = Annotated[OrByDevice[Size], AfterValidator(_refuse_no_device)]
Times = Annotated[OrByDevice[_Milliseconds], AfterValidator(_refuse_no_device)]
Portions = Annotated[OrByDevice[Portion], AfterValidator(_refuse_no_device)]


def iter_limits(limit: Any, run: Json) -> Iterator[tuple[str, Any]]:
    """Yield each device to which a limit applies, with its limit.

    These are the devices that it names, otherwise all on which the method was to run; "" if there
    are none.
    """
    devices = run.get("devices") or {}
    if isinstance(limit, Mapping):
        yield from limit.items()
    elif devices:
        for device in devices:
            yield device, limit
    else:
        yield "", limit


def find_device_facts(method: GateSubject) -> Json:
    """Return a method's record for the device of a gate."""
    facts: Json = (method.run.get("devices") or {}).get(method.device, {})
    return facts


def measure_time(method: GateSubject, limit: float, field: str, what: str) -> Measured:
    """Return a time in milliseconds from a device's record."""
    figure = find_device_facts(method).get(field)
    if figure is None:
        return None, f"{method.device}: {what} was not measured"
    words = f"{what} on {method.device} is {figure:g} ms, at most {limit:g} ms allowed"
    return figure, words


def measure_growth(method: GateSubject, limit: float, field: str) -> Measured:
    """Return the share by which a figure grew since the baseline's package.

    That package ran in alternation with this one. Returns 0 if both have the same bytes.
    """
    facts = find_device_facts(method)
    growth = facts.get("growth")
    if growth is None:
        return 0.0, ""
    figure = growth[field]
    if figure is None:
        return (
            None,
            f"{method.device}: its {field} next to the baseline's was not measured",
        )
    then, now, unit = (growth[f"{field}_{part}"] for part in ("then", "now", "unit"))
    words = (
        f"{field} on {method.device} grew by {figure:.1%} or more since the baseline "
        f"({then:,g} to {now:,g} {unit}, run in turns); at most {limit:.1%} allowed"
    )
    return figure, words
