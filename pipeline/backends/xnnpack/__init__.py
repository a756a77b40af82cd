"""XNNPACK, for CPUs: executorch/backends/xnnpack."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from pipeline.backends import reasons
from pipeline.backends.entry import Backend, Constructor, Sight
from pipeline.backends.options import Distinct, ModuleName, Options
from pipeline.backends.quantize_options import OF_MODULES, OF_OPERATORS, MixedQuantize

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

# The names of executorch's ALL_PARTITIONER_CONFIGS, in its order.
# fmt: off
XnnpackConfigName = Literal[
    "AbsConfig", "AddConfig", "AddmmConfig", "AvgPoolingConfig", "BatchNormConfig", "BMMConfig",
    "CatConfig", "CeilConfig", "CloneConfig", "CloneDimOrderConfig", "ConstantPadConfig",
    "ConvolutionConfig", "ClampConfig", "DivConfig", "ExpConfig", "FloorConfig", "GeluConfig",
    "HardtanhConfig", "HardswishConfig", "LeakyReLUConfig", "LinearConfig", "LogConfig",
    "MaxDimConfig", "MaximumConfig", "MaxPool2dConfig", "MeanDimConfig", "MinimumConfig",
    "MMConfig", "MulConfig", "NegConfig", "PermuteConfig", "PowConfig", "PreluConfig",
    "ReciprocalSquareRootConfig", "ReLUConfig", "TanhConfig", "ToDimOrderCopyConfig",
    "SigmoidConfig", "SinConfig", "CosConfig", "SliceCopyConfig", "SoftmaxConfig",
    "SquareRootConfig", "SubConfig", "UnsqueezeCopyConfig", "UpsampleBilinear2dConfig",
    "ViewCopyConfig", "QuantizedPerTensorConfig", "DeQuantizedPerTensorConfig",
    "QuantizeAffineConfig", "DeQuantizeAffineConfig", "ChooseQParamsAffineConfig",
]
# fmt: on
# The members of executorch's ConfigPrecisionType, in lower case.
XnnpackPrecision = Literal["fp32", "static_quant", "dynamic_quant"]


class XnnpackOptions(Options):
    """Options of `XnnpackPartitioner`."""

    per_op_mode: bool = Field(
        default=False,
        description="Give every operator a partition of its own, instead of merging them.",
    )
    config_precisions: Distinct[XnnpackPrecision] | None = Field(
        default=None,
        description="Delegate only operators that compute in one of these; by default in any.",
    )
    configs: Distinct[XnnpackConfigName] | None = Field(
        default=None,
        description="Delegate only what these partitioner configs match; by default all of them.",
    )
    force_non_static_weights_for_f32_linear: bool = Field(
        default=False,
        description="Leave the weights of float32 linears outside the delegate, as its inputs.",
    )


# The operators that XNNPACKQuantizer annotates, one of its patterns each or more.
XnnpackOperator = Literal[
    "adaptive_avg_pool2d", "add", "cat", "conv1d", "conv2d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "linear", "mul",
]  # fmt: skip


class XnnpackScheme(Options):
    """Options of `get_symmetric_quantization_config`, for an `XNNPACKQuantizer`: int8 activations
    and symmetric int8 weights."""

    dynamic: bool = Field(
        default=False,
        description="Quantize activations as they come. If false, their ranges are observed on "
        "calibration inputs.",
    )
    per_channel: bool = Field(
        default=True, description="Give each output channel of a weight a scale of its own."
    )
    weight_qmin: int = Field(
        default=-127, ge=-128, le=-1, description="The least quantized weight."
    )
    weight_qmax: int = Field(
        default=127, ge=1, le=127, description="The greatest quantized weight."
    )
    act_qmin: int = Field(
        default=-128, ge=-128, le=-1, description="The least quantized activation."
    )
    act_qmax: int = Field(
        default=127, ge=1, le=127, description="The greatest quantized activation."
    )

    @model_validator(mode="after")
    def _ranges_are_of_static_activations(self) -> Self:
        given = sorted({"act_qmin", "act_qmax"} & self.model_fields_set)
        if self.dynamic and given:
            raise PydanticCustomError(
                "rule",
                "must not hold `{name}`: XNNPACK itself chooses the range of activations that are "
                "quantized as they come",
                {"name": given[0]},
            )
        return self


class XnnpackQuantize(XnnpackScheme, MixedQuantize):
    """An `XNNPACKQuantizer`, with other options for some modules and operators."""

    scheme: ClassVar[type[Options]] = XnnpackScheme
    fused: ClassVar[frozenset[str]] = frozenset({"relu", "hardtanh", "batch_norm"})
    fusing: ClassVar[frozenset[str]] = frozenset(get_args(XnnpackOperator))

    quantizer: Literal["xnnpack"]
    modules: dict[ModuleName, XnnpackScheme | Literal["none"]] = Field(
        default={}, description=OF_MODULES
    )
    operators: dict[XnnpackOperator, XnnpackScheme | Literal["none"]] = Field(
        default={}, description=OF_OPERATORS
    )


def _xnnpack_partitioner(options: XnnpackOptions) -> Partitioner:
    from executorch.backends.xnnpack.partition import config, xnnpack_partitioner
    from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType

    configs = {each.__name__: each for each in config.ALL_PARTITIONER_CONFIGS}
    return xnnpack_partitioner.XnnpackPartitioner(
        configs=[configs[name] for name in options.configs] if options.configs else None,
        config_precisions=[ConfigPrecisionType[name.upper()] for name in options.config_precisions]
        if options.config_precisions
        else None,
        per_op_mode=options.per_op_mode,
        force_non_static_weights_for_f32_linear=options.force_non_static_weights_for_f32_linear,
    )


def _xnnpack_quantizer(config: XnnpackQuantize) -> Quantizer:
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantizer import ComposableQuantizer

    def quantizer(scheme: XnnpackScheme) -> XNNPACKQuantizer:
        ranges = {"act_qmin": scheme.act_qmin, "act_qmax": scheme.act_qmax}
        quantization = get_symmetric_quantization_config(
            is_per_channel=scheme.per_channel,
            is_dynamic=scheme.dynamic,
            weight_qmin=scheme.weight_qmin,
            weight_qmax=scheme.weight_qmax,
            **({} if scheme.dynamic else ranges),
        )
        return XNNPACKQuantizer().set_global(quantization)

    if not config.mixed:
        return quantizer(config)
    # `set_module_name` takes no "none", sees parameters as outside of any module, and lets an
    # outer module or the method take what its own options don't cover; a filter is exact.
    return ComposableQuantizer(
        [quantizer(each).set_filter_function(config.takes(each)) for each in config.schemes()]
    )


def _xnnpack_sight() -> Sight:
    from pipeline.backends.xnnpack import cache_key as sight

    return Sight(
        names_count=sight.names_count,
        unread=sight.UNREAD,
        read=sight.read,
        remap=sight.remap_handles,
        fixed_handles=sight.FIXED_HANDLES,
    )


ENTRIES = (
    Backend(
        name="xnnpack",
        backend_id="XnnpackBackend",
        details="executorch.backends.xnnpack.xnnpack_preprocess:XnnpackBackend",
        summary="CPUs: Arm, x86-64, RISC-V",
        options=XnnpackOptions,
        quantizer=XnnpackQuantize,
        make_partitioner=_xnnpack_partitioner,
        make_quantizer=_xnnpack_quantizer,
        make_sight=_xnnpack_sight,
        constructors=(
            Constructor(
                "executorch.backends.xnnpack.partition.xnnpack_partitioner:XnnpackPartitioner",
                left_out={
                    "verbose": "prints what it does; a build prints its own",
                    "kwargs": "for each config: `force_non_static_weights_for_f32_linear`",
                },
            ),
            Constructor(
                "executorch.backends.xnnpack.partition.config.xnnpack_config:"
                "XNNPartitionerConfig[kwargs]"
            ),
            Constructor(
                "executorch.backends.xnnpack.quantizer.xnnpack_quantizer:"
                "get_symmetric_quantization_config",
                of="quantizer",
                renamed={"per_channel": "is_per_channel", "dynamic": "is_dynamic"},
                left_out={"is_qat": "programs come here trained"},
                defaults={"per_channel": "as ExecuTorch's recipes for XNNPACK have it"},
            ),
        ),
        names_count=False,
        reasons=reasons.of_xnnpack,
        looks_into=frozenset(),
    ),
)
