"""XNNPACK, for CPUs: executorch/backends/xnnpack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pipeline.backends.entry import Backend, Constructor, Distinct, Options, QuantizeConfig, Sight

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


class XnnpackQuantize(QuantizeConfig):
    """Options of `get_symmetric_quantization_config`, for an `XNNPACKQuantizer`: int8 activations
    and symmetric int8 weights."""

    quantizer: Literal["xnnpack"]
    per_channel: bool = Field(
        default=True, description="Give each output channel of a weight a scale of its own."
    )
    weight_qmin: int = Field(
        default=-127, ge=-128, le=-1, description="The least quantized weight."
    )
    weight_qmax: int = Field(
        default=127, ge=1, le=127, description="The greatest quantized weight."
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
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer

    quantization = xnnpack_quantizer.get_symmetric_quantization_config(
        is_per_channel=config.per_channel,
        is_dynamic=config.dynamic,
        weight_qmin=config.weight_qmin,
        weight_qmax=config.weight_qmax,
    )
    return xnnpack_quantizer.XNNPACKQuantizer().set_global(quantization)


def _xnnpack_sight() -> Sight:
    from pipeline.backends import xnnpack_sight as sight

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
                "executorch.backends.xnnpack.quantizer.xnnpack_quantizer:"
                "get_symmetric_quantization_config",
                of="quantizer",
                renamed={"per_channel": "is_per_channel", "dynamic": "is_dynamic"},
                left_out={
                    "is_qat": "programs come here trained",
                    "act_qmin": "XNNPACK's kernels take all of int8",
                    "act_qmax": "XNNPACK's kernels take all of int8",
                },
                defaults={"per_channel": "as ExecuTorch's recipes for XNNPACK have it"},
            ),
        ),
        beyond={
            "force_non_static_weights_for_f32_linear": "goes through the constructor's kwargs",
            "quantizer": "names the entry",
        },
        names_count=False,
    ),
)
