"""The field `toolchain` of a package config."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from pipeline.config.fields import Name
from pipeline.features.toolchains.routing import HERE


def add_fields() -> dict[str, tuple[Any, Any]]:
    """Return the field that this feature adds to package configs."""
    text = (
        "The toolchain that builds the package, by its name in the setting `toolchains`; "
        f"`{HERE}` is the environment that runs doit."
    )
    field = Field(default=None, description=text, examples=["et15"])
    return {"toolchain": (Name | None, field)}
