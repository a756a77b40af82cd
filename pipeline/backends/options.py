"""What options of any kind are made of: strict, frozen models, and the values they share."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError


class Options(BaseModel):
    """A part of a config. `resolved()` is what it says with every default filled in, as plain JSON
    values; it is part of cache keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def resolved(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


def distinct(names: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(names)) < len(names):
        raise PydanticCustomError("rule", "must name each only once")
    return names


_T = TypeVar("_T")
# A list in YAML, a tuple here: not empty, and no member twice.
Distinct = Annotated[
    tuple[_T, ...],
    Field(strict=False, min_length=1, json_schema_extra={"uniqueItems": True}),
    AfterValidator(distinct),
]


MODULE_PATTERN = r"^[^\s.]+(\.[^\s.]+)*$"
ModuleName = Annotated[str, Field(pattern=MODULE_PATTERN)]
Modules = Annotated[
    Distinct[Annotated[str, Field(min_length=1)]],
    Field(
        description="Delegate only what stands in these sub-modules, by their qualified names such "
        "as decoder.layers.0; by default everything. A module that is called several times is "
        "named call by call, such as shared@0, or as shared@* for all of its calls."
    ),
]
