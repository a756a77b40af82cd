"""What Arm's entries share, TOSA, Ethos-U and VGF: executorch/backends/arm.

All three lower to TOSA first, with the same partitioner and the same quantizer. Ethos-U goes on
with vela, VGF with the ML SDK's model converter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError

from pipeline.backends.entry import Backend
from pipeline.backends.options import Options
from pipeline.backends.quantize_options import QuantizeConfig

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

# What all of them are lowered with.
TOSA_TOOLS = ("executorch", "flatbuffers", "ml_dtypes", "numpy", "torch", "torchao", "tosa-tools")
# By version of TOSA and profile, the extensions that executorch's TosaSpecification knows.
_INT = ("int16", "int4", "var", "cf", "u55")
_FP = ("bf16", "fp8e4m3", "fp8e5m2", "fft", "var", "cf")
TOSA_EXTENSIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "1.0": {"INT": _INT, "FP": _FP},
    "1.1": {
        "INT": ("shape", "int64", *_INT),
        "FP": ("shape", "int64", *_FP, "random", "mxfp", "blockscale_ue5m3"),
    },
}
_TOSA_PATTERN = r"^TOSA-1\.[01](\+[A-Za-z0-9_]+)+$"


def rule(what: str) -> PydanticCustomError:
    return PydanticCustomError("rule", what)  # type: ignore[arg-type]


def _tosa_spec(spec: str) -> str:
    """`TOSA-<version>+<profile>[+<profile>][+<extension>...]`."""
    if not re.match(_TOSA_PATTERN, spec):
        raise rule("must be a TOSA specification such as TOSA-1.0+INT+int16 or TOSA-1.1+FP")
    version, *parts = spec.removeprefix("TOSA-").split("+")
    profiles = [part for part in parts if part in TOSA_EXTENSIONS[version]]
    known = {"8k"}.union(*(TOSA_EXTENSIONS[version][profile] for profile in profiles))
    if not profiles:
        raise rule("must name a profile, FP or INT or both")
    if len(set(parts)) < len(parts):
        raise rule("must name each part only once")
    unknown = [part for part in parts if part not in known and part not in profiles]
    if unknown:
        raise rule(f"must have extensions of its profiles: {', '.join(sorted(known))}")
    return spec


TosaSpec = Annotated[
    str,
    AfterValidator(_tosa_spec),
    WithJsonSchema({"type": "string", "pattern": _TOSA_PATTERN}),
]

_FLAG_PATTERN = r"^--[a-z0-9][a-z0-9-]*(=[^\s]+)?$"


def flag(taken: tuple[str, ...]) -> AfterValidator:
    """A flag for a tool: one word, since executorch joins and splits them at spaces, and none that
    this package or executorch gives, that names a file or that ends the tool."""

    def check(flag: str) -> str:
        if not re.match(_FLAG_PATTERN, flag):
            raise rule("must be one flag such as --name or --name=value, without spaces")
        name = flag.partition("=")[0]
        if any(each.startswith(name) for each in taken):  # the tools take abbreviations
            raise rule(f"must be none of the flags that are given anyway: {', '.join(taken)}")
        return flag

    return AfterValidator(check)


FLAG_SCHEMA = WithJsonSchema({"type": "string", "pattern": _FLAG_PATTERN})


class PassOptions(Options):
    """Options of `ArmPassPipelineConfig`; the quantizer and the partitioner both run its passes."""

    softmax: Literal["masked", "stable"] | None = Field(
        default=None,
        description="How softmax is decomposed. By default masked, but stable for Ethos-U55 and "
        "U65 (the TOSA extension u55), which have no other.",
    )
    leaky_relu: Literal["table", "decompose"] = Field(
        default="decompose",
        description="How a quantized leaky ReLU is lowered: to a lookup table, or to clamp, "
        "multiply and add.",
    )
    quantize_neg_inf: float = Field(
        default=-256.0, allow_inf_nan=False, description="What stands for -inf when quantized."
    )
    quantize_pos_inf: float = Field(
        default=255.0, allow_inf_nan=False, description="What stands for inf when quantized."
    )

    @field_validator("softmax")
    @classmethod
    def _u55_has_no_mask(cls, value: str | None, info: ValidationInfo) -> str | None:
        """executorch leaves a pipeline config out of the compile specs where it equals the general
        default, and then Ethos-U55 would take its own without a word."""
        target = str(info.data.get("target") or info.data.get("tosa_spec") or "")
        if value == "masked" and ("u55" in target or "u65" in target):
            raise rule("must be stable for this target")
        return value


def _static(dynamic: bool) -> bool:
    if dynamic:
        raise rule("must be false: TOSA quantizes activations by observed ranges only")
    return dynamic


class ArmQuantize(QuantizeConfig):
    """Options of `get_symmetric_quantization_config` or, with int16 activations, of
    `get_symmetric_a16w8_quantization_config`: affine activations and symmetric weights."""

    partitioners_own: ClassVar[tuple[str, ...]] = (
        "softmax",
        "leaky_relu",
        "quantize_neg_inf",
        "quantize_pos_inf",
    )

    dynamic: Annotated[bool, AfterValidator(_static)] = Field(
        default=False,
        description="Must be false: ranges are observed on the model's calibration inputs.",
    )
    activations: Literal["int8", "int16"] = Field(
        default="int8",
        description="The type of activations. int16 takes the TOSA extension of that name.",
    )
    per_channel: bool = Field(
        default=True, description="Give each output channel of a weight a scale of its own."
    )
    act_qmin: int = Field(default=-128, ge=-128, le=-1, description="The least int8 activation.")
    act_qmax: int = Field(default=127, ge=1, le=127, description="The greatest int8 activation.")
    weight_qmin: int = Field(
        default=-127, ge=-128, le=-1, description="The least quantized weight; -7 for int4."
    )
    weight_qmax: int = Field(
        default=127, ge=1, le=127, description="The greatest quantized weight; 7 for int4."
    )
    eps: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="The least scale that observers give: by default 2**-16, and 2**-12 with "
        "int16 activations.",
    )

    @field_validator("activations")
    @classmethod
    def _has_the_extension(cls, value: str, info: ValidationInfo) -> str:
        spec = info.data.get("tosa_spec")
        if value == "int16" and spec is not None and "int16" not in spec.split("+"):
            raise rule("must be int8, or tosa_spec have the extension int16")
        return value

    @field_validator("act_qmin", "act_qmax", "weight_qmin", "weight_qmax")
    @classmethod
    def _is_not_ignored(cls, value: int, info: ValidationInfo) -> int:
        """executorch's configuration of int16 activations takes none of them."""
        default = cls.model_fields[str(info.field_name)].default
        if info.data.get("activations") == "int16" and value != default:
            raise rule(f"must be {default} with int16 activations, which take no other range")
        return value


def _partitioner(options: Any) -> Partitioner:
    from pipeline.backends import arm_parts

    return arm_parts.make_partitioner(options)


def _quantizer(config: Any) -> Quantizer:
    from pipeline.backends import arm_parts

    return arm_parts.make_quantizer(config)


def backend(**fields: Any) -> Backend:
    """An entry with Arm's partitioner and quantizer."""
    return Backend(make_partitioner=_partitioner, make_quantizer=_quantizer, **fields)
