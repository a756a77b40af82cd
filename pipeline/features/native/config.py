"""The field `devices` of `validate`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

from pipeline.backends.options import distinct

_Device = Annotated[str, StringConstraints(pattern=r"^[\w:.,=+-]{1,100}$")]
_Devices = Annotated[tuple[_Device, ...], Field(strict=False), AfterValidator(distinct)]


def add_fields() -> dict[str, tuple[Any, Any]]:
    """Return the field of `validate`."""
    text = (
        "Devices that each call of the validation is repeated on, beside this machine's Python "
        "bindings, and held to the same limits: `native`, ExecuTorch's C++ runtime; `qemu:<cpu>`, "
        "the same for aarch64 on an emulated processor; a board or phone that the setting "
        "`native_boards` names; or a device that a plugin brings."
    )
    field = Field(
        default=(), description=text, examples=[["native", "qemu:cortex-a72"]]
    )
    return {"devices": (_Devices, field)}
