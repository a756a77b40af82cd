"""The models of a package config: what can stand in it, with which limits and defaults.

They are also what the JSON schema is made from, so descriptions are written for people who edit a
config. How the YAML spelling becomes these models, `pipeline.config` knows.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    SerializeAsAny,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from pipeline.backends import Options, PartitionerSpec, QuantizeConfig
from pipeline.backends.entry import MODULE_PATTERN, Modules
from pipeline.sizes import SIZE_PATTERN, UNITS, parse_size

_INT64 = range(-(2**63), 2**63)
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$"
METHOD_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
_LABEL = r"^[^\x00-\x1f\x7f]+$"
# What a text that does not match one of these should be.
RULES = {
    NAME_PATTERN: "must be letters, digits, '_', '-' and single dots inside",
    METHOD_PATTERN: "must be letters, digits and '_', and not begin with a digit",
    _LABEL: "must be text, not empty, without control characters",
    MODULE_PATTERN: "must be a module's qualified name, such as decoder.layers.0",
}


def _size(value: Any) -> Any:
    parsed = parse_size(value) if isinstance(value, str) else None
    size = value if parsed is None else parsed
    if not isinstance(size, int) or size not in _INT64 or size < 1:
        units = ", ".join(UNITS)
        raise PydanticCustomError(
            "rule", "must be a size such as 40MB; units: {units}", {"units": units}
        )
    return size


def _constant(value: Any) -> Any:
    """A plan holds 64-bit numbers and texts that end at the first NUL."""
    for leaf in value if isinstance(value, list) else [value]:
        if not isinstance(leaf, int | float | str):
            raise PydanticCustomError(
                "rule", "must be a number, text, true, false or a list of these"
            )
        if isinstance(leaf, int) and leaf not in _INT64:
            raise PydanticCustomError("rule", "must be a number of at most 64 bits")
        if isinstance(leaf, float) and not math.isfinite(leaf):
            raise PydanticCustomError("rule", "must be a finite number")
        if isinstance(leaf, str) and re.search(r"[\0\ud800-\udfff]", leaf):
            raise PydanticCustomError("rule", "must be text without NUL and lone surrogates")
    return value


_LEAF = [{"type": "boolean"}, {"type": "number"}, {"type": "string"}]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
MethodName = Annotated[str, Field(pattern=METHOD_PATTERN)]
Label = Annotated[str, Field(pattern=_LABEL)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Tolerance = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Constant = Annotated[
    bool | int | float | str | list[bool | int | float | str],
    PlainValidator(_constant),
    WithJsonSchema({"anyOf": [*_LEAF, {"type": "array", "items": {"anyOf": _LEAF}}]}),
]
Size = Annotated[
    int,
    BeforeValidator(_size),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": SIZE_PATTERN}]}
    ),
]


class MethodConfig(Options):
    """How one method is lowered."""

    partitioners: tuple[PartitionerSpec, ...] = Field(
        description="The delegates that the method is lowered to, tried in this order. An empty "
        "list means portable operators only, said on purpose."
    )
    modules: Modules | None = Field(
        default=None,
        description="No partitioner delegates what stands in none of these sub-modules.",
    )
    quantize: SerializeAsAny[QuantizeConfig] | None = Field(
        default=None,
        description="How the method is quantized before it is lowered; by default not at all.",
    )

    @model_validator(mode="after")
    def _keeps_its_weights_quantized(self) -> Self:
        scheme = getattr(self.quantize, "scheme", None)
        here = any(each.name == "xnnpack" for each in self.partitioners)
        if here and isinstance(scheme, str) and scheme.endswith("_weight_only"):
            raise PydanticCustomError(
                "rule",
                "must not quantize by `{scheme}`: XNNPACK computes on float weights then, and "
                "stores them so; take int8_dynamic_activation_int4_weight or ..._int8_weight",
                {"scheme": scheme},
            )
        return self


class EmitConfig(Options):
    """How the package is written."""

    external_constants: bool = Field(
        default=False, description="Store the constants of portable operators in a .ptd file."
    )
    initialized_buffers: tuple[Label, ...] = Field(
        default=(),
        strict=False,
        description="Mutable buffers whose names hold one of these have their initial values "
        "stored in the package; the others begin undefined.",
    )


class Gates(Options):
    """What a package must keep to; without a limit nothing is checked."""

    min_delegated_nodes: Share | None = Field(
        default=None,
        description="The least share of each method's nodes that delegates run, 0 to 1.",
    )
    min_delegated_ops: Share | None = Field(
        default=None,
        description="The least share of each method's operators that delegates run, 0 to 1.",
    )
    max_size: Size | None = Field(
        default=None,
        description="The greatest size of the package's files, such as 40MB or 512KiB.",
    )


class ValidateConfig(Options):
    """How the package is proved against its source programs."""

    atol: Tolerance = Field(default=1e-4, description="Absolute tolerance of an output's values.")
    rtol: Tolerance = Field(default=1e-3, description="Relative tolerance of an output's values.")
    min_sqnr: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        default=None,
        description="The least ratio of signal to quantization noise of an output, in dB.",
    )
    inputs: int = Field(
        default=3,
        ge=0,
        le=2**31 - 1,
        description="How many input sets are generated for each method.",
    )
    seed: int = Field(
        default=0, ge=0, le=2**63 - 1, description="What the input sets are generated from."
    )
    steps: int = Field(
        default=4,
        ge=1,
        le=2**31 - 1,
        description="How often a method with state is called in a row.",
    )
    gates: Gates = Gates()


class PackageConfig(Options):
    """A package: which model it is made of, and how each method is lowered."""

    package: str
    model: Name = Field(
        description="The model source: models/<model>.pt2, models/<model>.py or models/<model>/."
    )
    target: Label | None = Field(default=None, description="A label for people and reports.")
    methods: dict[MethodName, MethodConfig] = Field(
        min_length=1, description="Every method of the model, and how it is lowered."
    )
    constant_methods: dict[MethodName, Constant] = Field(
        default={}, description="Methods that return a constant, and what they return."
    )
    emit: EmitConfig = EmitConfig()
    validation: ValidateConfig = Field(default=ValidateConfig(), alias="validate")

    def resolved(self) -> dict[str, Any]:
        """Without the order in which methods are written, which means nothing."""
        values = super().resolved()
        for name in ("methods", "constant_methods"):
            values[name] = dict(sorted(values[name].items()))
        return values
