"""Options of Core ML's partitioner and quantizer in configs."""

from __future__ import annotations

import sys
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from pipeline.backends.options import (
    NAMES,
    Distinct,
    OneOf,
    OperatorName,
    Options,
    rule,
)
from pipeline.backends.quantize_options import (
    NOT,
    OF_OPERATORS,
    ByModule,
    ByOperator,
    MixedQuantize,
    Static,
)
from pipeline.features.coreml.enumerated import EnumeratedShapes, takes_several

# The members of coremltools' ComputeUnit, in lower case.
CoreMLComputeUnit = Literal["all", "cpu_and_gpu", "cpu_only", "cpu_and_ne"]


class CoreMLWeightQuantizer(Options):
    """Quantization of a converted model's weights, with coremltools' `OpLinearQuantizerConfig`."""

    mode: Literal["linear_symmetric", "linear"] = "linear_symmetric"
    """linear_symmetric quantizes zero to zero; linear has a zero point."""
    dtype: Literal["int8", "uint8", "int4", "uint4"] = "int8"
    """The quantized type of weights; 4-bit types need ios18."""
    granularity: Literal["per_tensor", "per_channel", "per_block"] = "per_channel"
    """The part of a weight that has its own scale; per_block needs ios18."""
    block_size: int = Field(32, ge=1)
    """The number of weights per block of a channel, for per_block."""
    weight_threshold: int = Field(2048, ge=0)
    """Don't quantize weights with at most this many elements."""


class CoreMLOptions(Options):
    """Options of `CoreMLPartitioner` and of `CoreMLBackend.generate_compile_specs`."""

    skip_ops_for_coreml_delegation: Distinct[OperatorName] | None = None
    """Operators not to delegate, such as aten.add.Tensor."""
    take_over_mutable_buffer: bool = True
    """Keep mutable buffers in the model as states; requires a deployment target of ios18 or
    later."""
    take_over_constant_data: bool = True
    """Keep weights in the model; if false, they are passed to it as inputs."""
    lower_full_graph: bool = False
    """Fail if an operator can't be delegated, instead of leaving it to portable kernels."""
    compute_unit: CoreMLComputeUnit = "all"
    """The processors of the device that may run the model."""
    minimum_deployment_target: Annotated[str, OneOf("coreml_targets")] | None = None
    """The oldest OS version that must run the model, such as ios18; by default, the oldest version
    that supports the model."""
    compute_precision: Literal["float16", "float32"] = "float16"
    """The precision of the model's computation."""
    enumerated_shapes: EnumeratedShapes | None = None
    """The shapes that inputs with dynamic sizes may have, instead of any shape in a range: a list
    of shapes for each such input, by name. The first shapes of all lists belong together, as do the
    second, and so on. `all` means every size that the method accepts. This option requires
    lower_full_graph and, for more than one such input, a deployment target of ios18 or later."""
    model_type: Literal["model", "compiled_model"] = "model"
    """`model` is compiled on the device, `compiled_model` on a build machine with macOS."""
    op_linear_quantizer_config: CoreMLWeightQuantizer | None = None
    """Quantize the weights of the converted model, except those that gather operators read. The
    keys are options of coremltools' OpLinearQuantizerConfig: mode, dtype, granularity, block_size
    and weight_threshold. This option is experimental."""
    pass_names: Distinct[str] | None = None
    """The coremltools passes to run instead of the default ones, in this order, such as
    common::const_elimination."""
    multimethod_weight_sharing_strategy: Literal["positional", "disabled"] = (
        "positional"
    )
    """`positional` merges the partitions at the same position of every method into one model, so
    that weights are stored once; it requires a deployment target of ios18 or later and the same
    number of partitions in every method. `disabled` makes a model of each partition."""

    @field_validator("lower_full_graph")
    @classmethod
    def _takes_over_everything(cls, full: bool, info: ValidationInfo) -> bool:
        if full and info.data.get("skip_ops_for_coreml_delegation"):
            raise rule("can't be combined with skip_ops_for_coreml_delegation")
        for name in ("take_over_mutable_buffer", "take_over_constant_data"):
            if full and info.data.get(name) is False:
                raise rule(f"needs {name}: true")
        return full

    @field_validator("enumerated_shapes")
    @classmethod
    def _can_be_lowered(cls, shapes: Any, info: ValidationInfo) -> Any:
        if shapes is not None and info.data.get("lower_full_graph") is False:
            raise rule("needs lower_full_graph: true")
        target = info.data.get("minimum_deployment_target")
        several = isinstance(shapes, dict) and len(shapes) > 1
        if (
            several
            and "minimum_deployment_target" in info.data
            and not takes_several(target)
        ):
            raise rule(
                f"needs minimum_deployment_target: ios18 or later for {len(shapes)} inputs"
            )
        return shapes

    @field_validator("model_type")
    @classmethod
    def _compiled_on_macos(cls, kind: str) -> str:
        if kind == "compiled_model" and sys.platform != "darwin":
            raise rule("must be model: coremltools compiles models on macOS only")
        return kind


_FOLLOWERS = NAMES["coreml_followers"]
CoreMLOperator = Annotated[str, OneOf("coreml_operators", "coreml_followers")]


class CoreMLScheme(Options):
    """Options of coremltools' `ModuleLinearQuantizerConfig`, for a `CoreMLQuantizer`."""

    quantization_scheme: Literal["symmetric", "affine"] = "symmetric"
    """symmetric maps zero to the middle of the quantized range; affine chooses a zero point that
    fits the values."""
    activation_dtype: Literal["quint8", "float32"] = "quint8"
    """The quantized type of activations; float32 leaves them unquantized."""
    activation_observer: Literal["moving_average_min_max", "min_max"] = (
        "moving_average_min_max"
    )
    """The observer that determines the ranges of activations."""
    weight_dtype: Literal["qint8", "quint8"] = "qint8"
    """The quantized type of weights."""
    weight_observer: Literal["moving_average_min_max", "min_max"] = (
        "moving_average_min_max"
    )
    """The observer that determines the ranges of weights."""
    weight_per_channel: bool = True
    """Give each output channel of a weight its own scale."""


class CoreMLQuantize(CoreMLScheme, MixedQuantize):
    """A `CoreMLQuantizer`, with overrides for individual modules and operators."""

    scheme: ClassVar[type[Options]] = CoreMLScheme
    fused: ClassVar[frozenset[str]] = frozenset(NAMES["coreml_activations"])
    fusing: ClassVar[frozenset[str]] = frozenset(NAMES["coreml_operators"])

    quantizer: Literal["coreml"]
    dynamic: Static = False
    modules: ByModule[CoreMLScheme] = Field({})
    operators: ByOperator[CoreMLOperator, CoreMLScheme] = Field(
        {},
        description=(
            f"{OF_OPERATORS} Pooling and similar operators are quantized like their input and "
            "accept only `none`."
        ),
    )

    @field_validator("operators")
    @classmethod
    def _followers_have_no_options(cls, overrides: dict[str, Any]) -> dict[str, Any]:
        for name, override in overrides.items():
            if override != NOT and name in _FOLLOWERS:
                raise rule(
                    f"must set none for {name}, which is otherwise quantized like its input"
                )
        return overrides

    def observes(self, scheme: CoreMLScheme) -> bool:
        return scheme.activation_dtype != "float32"
