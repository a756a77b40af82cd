"""Options that Arm's entries share: the TOSA specification, the passes and the quantizer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from pipeline.backends.options import NAMES, Greatest, Least, OneOf, Options, rule
from pipeline.backends.quantize_options import (
    NOT,
    OF_OPERATORS,
    ByModule,
    ByOperator,
    MixedQuantize,
    Static,
)

WORD = r"[A-Za-z0-9_.,:+-]+"  # part of a tool's argument: no space, no slash
# The extensions that executorch's TosaSpecification knows, by TOSA version and profile.
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


def _check_tosa_spec(spec: str) -> str:
    """Check `TOSA-<version>+<profile>[+<profile>][+<extension>...]`."""
    if not re.fullmatch(_TOSA_PATTERN, spec):
        raise rule(
            "must be a TOSA specification such as TOSA-1.0+INT+int16 or TOSA-1.1+FP"
        )
    version, *parts = spec.removeprefix("TOSA-").split("+")
    profiles = [part for part in parts if part in TOSA_EXTENSIONS[version]]
    extensions = {"8k"}.union(
        *(TOSA_EXTENSIONS[version][profile] for profile in profiles)
    )
    if not profiles:
        raise rule("must name a profile, FP or INT or both")
    if len(set(parts)) < len(parts):
        raise rule("must name each part only once")
    unknown = [
        part for part in parts if part not in extensions and part not in profiles
    ]
    if unknown:
        raise rule(
            f"must have extensions of its profiles: {', '.join(sorted(extensions))}"
        )
    return spec


TosaSpec = Annotated[
    str,
    AfterValidator(_check_tosa_spec),
    WithJsonSchema({"type": "string", "pattern": _TOSA_PATTERN}),
]


class OneFlag:
    """Annotates a flag for a tool: one of the given flags, with or without a value.

    None of these flags names a file or makes the tool exit. A flag must be one word, since
    executorch joins and splits flags at spaces.
    """

    def __init__(self, names: str) -> None:
        self.known = [f"--{name}" for name in names.split()]
        self.pattern = rf"^({'|'.join(self.known)})(={WORD})?$"

    def _check(self, flag: str) -> str:
        if not re.fullmatch(rf"--[a-z0-9-]+(={WORD})?", flag):
            raise rule(
                "must be one flag such as --name or --name=value, without spaces"
            )
        if not re.fullmatch(self.pattern, flag):
            raise PydanticCustomError("unknown", "unknown", {"known": self.known})
        return flag

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            self._check, handler(source)
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "string", "pattern": self.pattern}


def _check_softmax(value: str | None, info: ValidationInfo) -> str | None:
    """Reject a value that would be lost.

    executorch omits a pipeline config from the compile specs if it equals the general default, and
    Ethos-U55 would then silently use a different default.
    """
    target = str(info.data.get("target") or info.data.get("tosa_spec") or "")
    if value == "masked" and ("u55" in target or "u65" in target):
        raise rule("must be stable for this target")
    return value


# Options of `ArmPassPipelineConfig`, whose passes both the quantizer and the partitioner run.
# Models declare them after the target, since their validity can depend on it.
Softmax = Annotated[
    Literal["masked", "stable"] | None,
    AfterValidator(_check_softmax),
    Field(
        description="The decomposition of softmax; by default masked. Ethos-U55, Ethos-U65 and "
        "TOSA specifications with the extension u55 support only stable, their default."
    ),
]
LeakyReLU = Annotated[
    Literal["table", "decompose"],
    Field(
        description="How a quantized leaky ReLU is lowered: to a lookup table, or to clamp, "
        "multiply and add."
    ),
]
NegativeInfinity = Annotated[
    float,
    Field(allow_inf_nan=False, description="The value to which -inf is quantized."),
]
PositiveInfinity = Annotated[
    float,
    Field(allow_inf_nan=False, description="The value to which inf is quantized."),
]
PASS_OPTIONS = ("softmax", "leaky_relu", "quantize_neg_inf", "quantize_pos_inf")
_FOLLOWERS = NAMES["arm_followers"]
ArmOperator = Annotated[str, OneOf("arm_operators", "arm_followers")]
RANGES = ("act_qmax", "act_qmin", "weight_qmax", "weight_qmin")


class ArmScheme(Options):
    """Options for symmetric quantization with int8 or int16 activations.

    They are passed to `get_symmetric_quantization_config` or, with int16 activations, to
    `get_symmetric_a16w8_quantization_config`.

    Activations are affine, and weights symmetric.
    """

    activations: Literal["int8", "int16"] = "int8"
    """The quantized type of activations. For tosa and vgf, int16 requires the extension int16 in
    tosa_spec."""
    per_channel: bool = True
    """Give each output channel of a weight its own scale."""
    act_qmin: Least = -128
    """The minimum quantized value of int8 activations."""
    act_qmax: Greatest = 127
    """The maximum quantized value of int8 activations."""
    weight_qmin: Least = -127
    "The minimum quantized weight; use -7 for int4."
    weight_qmax: Greatest = 127
    "The maximum quantized weight; use 7 for int4."
    eps: float | None = Field(None, gt=0, allow_inf_nan=False)
    """The minimum scale that observers may choose; by default 2**-16, or 2**-12 with int16
    activations."""

    @field_validator(*RANGES)
    @classmethod
    def _is_not_ignored(cls, value: int, info: ValidationInfo) -> int:
        """Refuse ranges with int16 activations, for which executorch takes no ranges."""
        default = cls.model_fields[str(info.field_name)].default
        if info.data.get("activations") == "int16" and value != default:
            raise rule(
                f"must be {default} with int16 activations, which take no other range"
            )
        return value


def _lacks_int16(info: ValidationInfo) -> bool:
    spec = info.data.get("tosa_spec")  # None for an NPU, which supports int16
    return spec is not None and "int16" not in spec.split("+")


class ArmQuantize(ArmScheme, MixedQuantize):
    """Options that Arm's quantizers share, with overrides for individual modules and operators."""

    scheme: ClassVar[type[Options]] = ArmScheme
    fused: ClassVar[frozenset[str]] = frozenset({"relu", "hardtanh", "batch_norm"})
    fusing: ClassVar[frozenset[str]] = frozenset(
        {"conv1d", "conv2d", "conv3d", "conv_transpose2d", "convolution", "linear"}
    )
    partitioners_own: ClassVar[tuple[str, ...]] = PASS_OPTIONS

    dynamic: Static = False
    io: Literal["int8", "int16", "uint8"] | None = None
    """The quantized type of the method's inputs and outputs; by default the type of activations.
    Only inputs and outputs can be uint8."""
    modules: ByModule[ArmScheme] = Field({})
    operators: ByOperator[ArmOperator, ArmScheme] = Field(
        {},
        description=(
            f"{OF_OPERATORS} Operators that only move values, and any relu that doesn't follow a "
            "convolution or linear layer, are quantized like their neighbours and accept only "
            "`none`."
        ),
    )

    @field_validator("activations", "io")
    @classmethod
    def _has_the_extension(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value == "int16" and _lacks_int16(info):
            raise rule("must be int8 unless tosa_spec has the extension int16")
        return value

    @field_validator("modules", "operators")
    @classmethod
    def _can_differ_so(
        cls, overrides: dict[str, Any], info: ValidationInfo
    ) -> dict[str, Any]:
        for name, override in overrides.items():
            if override == NOT:
                continue
            if info.field_name == "operators" and name in _FOLLOWERS:
                raise rule(
                    f"must set {NOT} for {name}, which is otherwise quantized like its neighbours"
                )
            option_names = override.model_fields_set
            if "activations" in option_names:
                if override.activations == "int16" and _lacks_int16(info):
                    raise rule(
                        f"must not set int16 for {name} unless tosa_spec has that extension"
                    )
            elif info.data.get(
                "activations"
            ) == "int16" and not option_names.isdisjoint(RANGES):
                option = next(name for name in RANGES if name in option_names)
                raise rule(
                    f"must not set {option} for {name}: int16 activations don't use it"
                )
        return overrides
