"""The fields of `validate` that concern devices, and the field `devices` of targets."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from pipeline.backends.options import distinct, rule
from pipeline.config.fields import OrByDevice
from pipeline.features.native.target_devices import DEVICE_PATTERN


def _check_name(name: str) -> str:
    if not re.fullmatch(DEVICE_PATTERN, name):
        raise rule("must be a device: native, qemu:cortex-a72, or the name of a board")
    return name


_Device = Annotated[
    str,
    Field(json_schema_extra={"pattern": DEVICE_PATTERN}),
    AfterValidator(_check_name),
]
_Calls = Annotated[int, Field(ge=1, le=10_000)]
_Repeats = Annotated[int, Field(ge=2, le=10_000)]
_RepeatsOfDevices = OrByDevice[_Repeats]
_WarmUp = Annotated[int, Field(ge=0, le=1000)]
_Pause = Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)]
_Devices = Annotated[
    tuple[_Device, ...],
    Field(strict=False, json_schema_extra={"uniqueItems": True}),
    AfterValidator(distinct),
]


def add_target_fields() -> dict[str, tuple[Any, Any]]:
    """Return the field that targets get."""
    text = (
        "The devices that represent this target, by the names that `validate.devices` accepts. "
        "Packages with this `target` are validated on these devices, in addition to those in "
        "`validate.devices`. The setting `native_boards` contains the addresses of boards."
    )
    field = Field(
        default=(), description=text, examples=[["native", "qemu:cortex-a72", "pi5"]]
    )
    return {"devices": (_Devices, field)}


def add_fields() -> dict[str, tuple[Any, Any]]:
    """Return the fields that `validate` gets."""
    text = (
        "Devices on which each call of the validation is repeated, in addition to this machine's "
        "Python bindings, with the same limits: `native`, ExecuTorch's C++ runtime; "
        "`qemu:<cpu>`, the same runtime for aarch64 on an emulated processor; a board or phone "
        "that the setting `native_boards` names; or a plugin's device."
    )
    field = Field(
        default=(), description=text, examples=[["native", "qemu:cortex-a72"]]
    )
    calls = Field(
        default=None,
        description=(
            "The number of timed calls of each method on a device; by default, as many as fit "
            "into 0.2 seconds, but at least two and at most 100."
        ),
        examples=[100],
    )
    warm_up = Field(
        default=2,
        description="The number of warm-up calls of each method on a device, which are not timed.",
        examples=[5],
    )
    pause = Field(
        default=0.0,
        description=(
            "The pause before each timed call on a device, in milliseconds, so that a hot device "
            "can cool down."
        ),
        examples=[50],
    )
    repeats = Field(
        default=None,
        description=(
            "The number of repeated calls to each stateless method with the same inputs: one "
            "number for all devices, or a number for each device. The report shows how many of "
            "these calls returned bytes that differ from those of the first call; a call that "
            "exceeds the limits fails."
        ),
        examples=[100],
    )
    return {
        "devices": (_Devices, field),
        "device_calls": (_Calls | None, calls),
        "device_repeats": (_RepeatsOfDevices | None, repeats),
        "device_warm_up": (_WarmUp, warm_up),
        "device_pause": (_Pause, pause),
    }
