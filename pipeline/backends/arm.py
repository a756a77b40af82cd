"""Arm: TOSA, Ethos-U NPUs and VGF, for Vulkan's ML extensions: executorch/backends/arm.

All three lower to TOSA first, with the same partitioner and the same quantizer. Ethos-U goes on
with vela, VGF with the ML SDK's model converter.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError

from pipeline import digest
from pipeline.backends.entry import Backend, Requirement, extra
from pipeline.backends.options import Distinct, Options
from pipeline.backends.quantize_options import QuantizeConfig

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

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


def _rule(what: str) -> PydanticCustomError:
    return PydanticCustomError("rule", what)  # type: ignore[arg-type]


def _tosa_spec(spec: str) -> str:
    """`TOSA-<version>+<profile>[+<profile>][+<extension>...]`."""
    if not re.match(_TOSA_PATTERN, spec):
        raise _rule("must be a TOSA specification such as TOSA-1.0+INT+int16 or TOSA-1.1+FP")
    version, *parts = spec.removeprefix("TOSA-").split("+")
    profiles = [part for part in parts if part in TOSA_EXTENSIONS[version]]
    known = {"8k"}.union(*(TOSA_EXTENSIONS[version][profile] for profile in profiles))
    if not profiles:
        raise _rule("must name a profile, FP or INT or both")
    if len(set(parts)) < len(parts):
        raise _rule("must name each part only once")
    unknown = [part for part in parts if part not in known and part not in profiles]
    if unknown:
        raise _rule(f"must have extensions of its profiles: {', '.join(sorted(known))}")
    return spec


TosaSpec = Annotated[
    str,
    AfterValidator(_tosa_spec),
    WithJsonSchema({"type": "string", "pattern": _TOSA_PATTERN}),
]

# vela's accelerator configurations: an NPU and its multiply-accumulates in a cycle.
# fmt: off
EthosUTarget = Literal[
    "ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256",
    "ethos-u65-256", "ethos-u65-512",
    "ethos-u85-128", "ethos-u85-256", "ethos-u85-512", "ethos-u85-1024", "ethos-u85-2048",
]
# What Arm/vela.ini defines.
EthosUSystem = Literal[
    "Ethos_U55_Deep_Embedded", "Ethos_U55_High_End_Embedded",
    "Ethos_U65_Embedded", "Ethos_U65_Mid_End", "Ethos_U65_High_End", "Ethos_U65_Client_Server",
    "Ethos_U85_SYS_Flash_Low", "Ethos_U85_SYS_Flash_High", "Ethos_U85_SYS_DRAM_Low",
    "Ethos_U85_SYS_DRAM_Mid", "Ethos_U85_SYS_DRAM_High",
]
EthosUMemory = Literal[
    "Sram_Only", "Shared_Sram", "Dedicated_Sram", "Dedicated_Sram_256KB", "Dedicated_Sram_384KB",
    "Dedicated_Sram_512KB",
]
# fmt: on
_FLAG_PATTERN = r"^--[a-z0-9][a-z0-9-]*(=[^\s]+)?$"


def _flag(taken: tuple[str, ...]) -> AfterValidator:
    """A flag for a tool: one word, since executorch joins and splits them at spaces, and none that
    this package or executorch gives, that names a file or that ends the tool."""

    def check(flag: str) -> str:
        if not re.match(_FLAG_PATTERN, flag):
            raise _rule("must be one flag such as --name or --name=value, without spaces")
        name = flag.partition("=")[0]
        if any(each.startswith(name) for each in taken):  # the tools take abbreviations
            raise _rule(f"must be none of the flags that are given anyway: {', '.join(taken)}")
        return flag

    return AfterValidator(check)


_FLAG_SCHEMA = WithJsonSchema({"type": "string", "pattern": _FLAG_PATTERN})
VelaFlag = Annotated[
    str,
    _flag(
        (
            "--accelerator-config",
            "--config",
            "--system-config",
            "--memory-mode",
            "--output-dir",
            "--output-format",
            "--list-config-files",
            "--list-configs",
            "--supported-ops-report",
            "--help",
            "--version",
            "--api-version",
        )
    ),
    _FLAG_SCHEMA,
]
ConverterFlag = Annotated[
    str,
    _flag(
        (
            "--input",
            "--output",
            "--tosa-flatbuffer",
            "--tosa-flatbuffer-schema",
            "--help",
            "--version",
        )
    ),
    _FLAG_SCHEMA,
]


class _Passes(Options):
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
            raise _rule("must be stable for this target")
        return value


class _TosaTarget(Options):
    tosa_spec: TosaSpec = Field(
        description="The TOSA specification that is lowered to: version, one or both profiles (FP, "
        "INT), extensions, such as TOSA-1.0+INT+int16+int4."
    )


class _EthosUTarget(Options):
    target: EthosUTarget = Field(
        description="The NPU and its multiply-accumulates in a cycle, such as ethos-u55-128."
    )


class _VgfTarget(Options):
    tosa_spec: TosaSpec = Field(
        default="TOSA-1.0+FP+INT+int4+int16",
        description="The TOSA specification that is lowered to: version, one or both profiles (FP, "
        "INT), extensions.",
    )


class TosaOptions(_Passes, _TosaTarget):
    """Options of `TOSAPartitioner`: those of its `TosaCompileSpec`."""


class EthosUOptions(_Passes, _EthosUTarget):
    """Options of `EthosUPartitioner`: those of its `EthosUCompileSpec`."""

    system_config: EthosUSystem | None = Field(
        default=None,
        description="The system that vela compiles for, of those that Arm/vela.ini defines. By "
        "default Ethos_U55_High_End_Embedded, Ethos_U65_High_End or Ethos_U85_SYS_DRAM_Mid.",
    )
    memory_mode: EthosUMemory | None = Field(
        default=None,
        description="What the NPU's memories are used for, of what Arm/vela.ini defines. By "
        "default Shared_Sram for U55, Dedicated_Sram_384KB for U65, Sram_Only for U85.",
    )
    extra_flags: Distinct[VelaFlag] | None = Field(
        default=None,
        description="Further flags of vela, such as --optimise=Size or --arena-cache-size=400000.",
    )
    config_ini: Literal["Arm/vela.ini"] = Field(
        default="Arm/vela.ini",
        description="The file that defines systems and memory modes, of those that vela brings.",
    )

    @field_validator("system_config")
    @classmethod
    def _is_the_targets(cls, value: str | None, info: ValidationInfo) -> str | None:
        family = str(info.data.get("target", "")).rpartition("-")[0].replace("-", "_")
        if value is not None and family and not value.lower().startswith(family):
            raise _rule("must be a system with the target's NPU")
        return value


class VgfOptions(_Passes, _VgfTarget):
    """Options of `VgfPartitioner`: those of its `VgfCompileSpec`."""

    compiler_flags: Distinct[ConverterFlag] | None = Field(
        default=None,
        description="Further flags of the model converter, such as --require-static-shape.",
    )


def _static(dynamic: bool) -> bool:
    if dynamic:
        raise _rule("must be false: TOSA quantizes activations by observed ranges only")
    return dynamic


class _ArmQuantize(QuantizeConfig):
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
            raise _rule("must be int8, or tosa_spec have the extension int16")
        return value

    @field_validator("act_qmin", "act_qmax", "weight_qmin", "weight_qmax")
    @classmethod
    def _is_not_ignored(cls, value: int, info: ValidationInfo) -> int:
        """executorch's configuration of int16 activations takes none of them."""
        default = cls.model_fields[str(info.field_name)].default
        if info.data.get("activations") == "int16" and value != default:
            raise _rule(f"must be {default} with int16 activations, which take no other range")
        return value


class TosaQuantize(_ArmQuantize, _Passes, _TosaTarget):
    """Options of a `TOSAQuantizer`."""

    quantizer: Literal["tosa"]
    partitioners_own = ("tosa_spec", *_ArmQuantize.partitioners_own)


class EthosUQuantize(_ArmQuantize, _Passes, _EthosUTarget):
    """Options of an `EthosUQuantizer`."""

    quantizer: Literal["ethos-u"]
    partitioners_own = ("target", *_ArmQuantize.partitioners_own)


class VgfQuantize(_ArmQuantize, _Passes, _VgfTarget):
    """Options of a `VgfQuantizer`."""

    quantizer: Literal["vgf"]
    partitioners_own = ("tosa_spec", *_ArmQuantize.partitioners_own)


def _partitioner(options: TosaOptions | EthosUOptions | VgfOptions) -> Partitioner:
    from pipeline.backends import arm_parts

    return arm_parts.make_partitioner(options)


def _quantizer(config: TosaQuantize | EthosUQuantize | VgfQuantize) -> Quantizer:
    from pipeline.backends import arm_parts

    return arm_parts.make_quantizer(config)


_CONVERTER = "MODEL_CONVERTER_PATH"


def _own_converter() -> str:
    """The converter that executorch is told to call, or "" where it calls the wheel's."""
    return os.environ.get(_CONVERTER) or ""


def _executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def converter() -> str:
    """The model converter's program. The wheel's own, which executorch would only find on PATH,
    where a script of another digest calls it; a variable names another."""
    if _own_converter():
        return _own_converter()
    spec = find_spec("model_converter")
    folders = spec.submodule_search_locations if spec is not None else None
    found = [Path(each) / "binaries" / "bin" / "model-converter" for each in folders or ()]
    return str(found[0]) if found else ""


@contextmanager
def _calling_the_converter() -> Iterator[None]:
    """Has executorch call `converter()`."""
    before = os.environ.get(_CONVERTER)
    os.environ[_CONVERTER] = converter()
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CONVERTER]
        else:
            os.environ[_CONVERTER] = before


def _no_emulation() -> str:
    from pipeline.backends import arm_emulation

    return arm_emulation.missing()


def _vgf_facts() -> dict[str, str]:
    path = _own_converter()
    return {"model converter": digest.of_file(Path(path))} if _executable(path) else {}


_TOSA_TOOLS = ("executorch", "flatbuffers", "ml_dtypes", "numpy", "torch", "torchao", "tosa-tools")


def _backend(**fields: Any) -> Backend:
    return Backend(make_partitioner=_partitioner, make_quantizer=_quantizer, **fields)


ENTRIES = (
    _backend(
        name="ethos-u",
        backend_id="EthosUBackend",
        summary="Ethos-U55, U65 and U85 NPUs of microcontrollers; quantized operators only",
        options=EthosUOptions,
        quantizer=EthosUQuantize,
        distributions=(*_TOSA_TOOLS, "ethos-u-vela"),
        requirements=(extra("ethos-u", "ethosu", "tosa_serializer"),),
        cannot_run=lambda: "it takes an Ethos-U NPU, and ExecuTorch has no model of one",
    ),
    _backend(
        name="vgf",
        backend_id="VgfBackend",
        summary="GPUs and NPUs with Vulkan's ML extensions for tensors and data graphs",
        options=VgfOptions,
        quantizer=VgfQuantize,
        distributions=(*_TOSA_TOOLS, "ai-ml-sdk-model-converter"),
        requirements=(
            extra("vgf", "model_converter", "tosa_serializer"),
            Requirement(
                f"an executable file where {_CONVERTER} points",
                "unset it to use the installed one",
                lambda: not _own_converter() or _executable(_own_converter()),
            ),
        ),
        facts=_vgf_facts,
        deterministic=_calling_the_converter,
        cannot_run=_no_emulation,
    ),
    _backend(
        name="tosa",
        backend_id="TOSABackend",
        summary="TOSA itself, as compilers for other devices read it",
        options=TosaOptions,
        quantizer=TosaQuantize,
        distributions=_TOSA_TOOLS,
        requirements=(extra("tosa", "tosa_serializer"),),
        cannot_run=lambda: "TOSA is for other compilers, and ExecuTorch's runtime has none",
    ),
)
