"""Core ML: executorch/backends/apple/coreml."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from pipeline.backends import reasons
from pipeline.backends.entry import Backend, Constructor
from pipeline.backends.operators import OperatorName, edge_operators
from pipeline.backends.options import Distinct, ModuleName, Options
from pipeline.backends.quantize_options import NOT, OF_MODULES, OF_OPERATORS, MixedQuantize, Static
from pipeline.backends.vendors import on_a_mac
from pipeline.store.errors import PipelineError, did_you_mean

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

# The members of coremltools' ComputeUnit, and of its `target` those that have ML programs, in
# lower case.
CoreMLComputeUnit = Literal["all", "cpu_and_gpu", "cpu_only", "cpu_and_ne"]
# fmt: off
CoreMLTarget = Literal[
    "ios15", "ios16", "ios17", "ios18", "ios26",
    "macos12", "macos13", "macos14", "macos15", "macos26",
    "watchos8", "watchos9", "watchos10", "watchos11", "watchos26",
    "tvos15", "tvos16", "tvos17", "tvos18", "tvos26",
]
# fmt: on


class CoreMLWeightQuantizer(Options):
    """How a converted model's weights are quantized: coremltools' `OpLinearQuantizerConfig`."""

    mode: Literal["linear_symmetric", "linear"] = Field(
        default="linear_symmetric", description="Whether zero is quantized to zero."
    )
    dtype: Literal["int8", "uint8", "int4", "uint4"] = Field(
        default="int8", description="What a weight is quantized to; 4 bits need ios18."
    )
    granularity: Literal["per_tensor", "per_channel", "per_block"] = Field(
        default="per_channel", description="What has a scale of its own; per_block needs ios18."
    )
    block_size: int = Field(
        default=32, ge=1, description="How many weights of a channel make a block, if per_block."
    )
    weight_threshold: int = Field(
        default=2048, ge=0, description="Leave weights of no more than this many elements alone."
    )


class CoreMLOptions(Options):
    """Options of `CoreMLPartitioner`, with those of `CoreMLBackend.generate_compile_specs`."""

    skip_ops_for_coreml_delegation: Distinct[OperatorName] | None = Field(
        default=None, description="Operators to leave to others, such as aten.add.Tensor."
    )
    take_over_mutable_buffer: bool = Field(
        default=True,
        description="Keep mutable buffers in the model, as states, which needs ios18.",
    )
    take_over_constant_data: bool = Field(
        default=True, description="Keep weights in the model; if false they are its inputs."
    )
    lower_full_graph: bool = Field(
        default=False,
        description="Fail if an operator is not delegated, instead of leaving it to others.",
    )
    compute_unit: CoreMLComputeUnit = Field(
        default="all", description="What the device may run the model on."
    )
    minimum_deployment_target: CoreMLTarget | None = Field(
        default=None,
        description="The oldest system that must run the model, such as ios18; by default the "
        "oldest that has what the model needs.",
    )
    compute_precision: Literal["float16", "float32"] = Field(
        default="float16", description="What the model computes in."
    )
    model_type: Literal["model", "compiled_model"] = Field(
        default="model",
        description="Whether devices compile the model, or it is compiled here, for which "
        "coremltools needs macOS.",
    )
    op_linear_quantizer_config: CoreMLWeightQuantizer | None = Field(
        default=None,
        description="Quantize the weights of the converted model, all but those of gathers; "
        "experimental.",
    )
    pass_names: Distinct[str] | None = Field(
        default=None,
        description="Run these of coremltools' passes, such as common::const_elimination, in this "
        "order, instead of its default ones.",
    )
    multimethod_weight_sharing_strategy: Literal["positional", "disabled"] = Field(
        default="positional",
        description="Make one model of the partitions in the same place of every method, so that "
        "weights are stored once; needs ios18, and as many partitions in every method. Or not.",
    )

    @field_validator("lower_full_graph")
    @classmethod
    def _takes_over_everything(cls, full: bool, info: ValidationInfo) -> bool:
        if full and info.data.get("skip_ops_for_coreml_delegation"):
            raise PydanticCustomError("rule", "can't stand beside skip_ops_for_coreml_delegation")
        for name in ("take_over_mutable_buffer", "take_over_constant_data"):
            if full and info.data.get(name) is False:
                raise PydanticCustomError("rule", "needs {name}: true", {"name": name})
        return full

    @field_validator("model_type")
    @classmethod
    def _compiled_on_macos(cls, kind: str) -> str:
        if kind == "compiled_model" and sys.platform != "darwin":
            raise PydanticCustomError(
                "rule", "must be model: coremltools compiles models on macOS only"
            )
        return kind


# The operators that CoreMLQuantizer quantizes by themselves, one of its patterns each or more.
CoreMLOperator = Literal["add", "conv1d", "conv2d", "conv3d", "linear", "matmul", "mul"]
# Those that it quantizes as what they read.
CoreMLFollower = Literal[
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "avg_pool1d",
    "avg_pool2d", "avg_pool3d", "flatten", "max_pool1d", "max_pool2d", "max_pool3d", "mean",
]  # fmt: skip


class CoreMLScheme(Options):
    """Options of coremltools' `ModuleLinearQuantizerConfig`, for a `CoreMLQuantizer`."""

    quantization_scheme: Literal["symmetric", "affine"] = Field(
        default="symmetric", description="Whether zero is quantized to the middle of the range."
    )
    activation_dtype: Literal["quint8", "float32"] = Field(
        default="quint8", description="What activations are quantized to; float32: not at all."
    )
    activation_observer: Literal["moving_average_min_max", "min_max"] = Field(
        default="moving_average_min_max", description="How ranges of activations are found."
    )
    weight_dtype: Literal["qint8", "quint8"] = Field(
        default="qint8", description="What weights are quantized to."
    )
    weight_observer: Literal["moving_average_min_max", "min_max"] = Field(
        default="moving_average_min_max", description="How ranges of weights are found."
    )
    weight_per_channel: bool = Field(
        default=True, description="Give each output channel of a weight a scale of its own."
    )


class CoreMLQuantize(CoreMLScheme, MixedQuantize):
    """A `CoreMLQuantizer`, with other options for some modules and operators."""

    scheme: ClassVar[type[Options]] = CoreMLScheme
    # The activations of its patterns, as they are exported.
    fused: ClassVar[frozenset[str]] = frozenset(
        [
            "batch_norm",
            "celu",
            "elu",
            "gelu",
            "hardsigmoid",
            "hardswish",
            "hardtanh",
            "leaky_relu",
            "log_sigmoid",
            "mish",
            "relu",
            "relu6",
            "selu",
            "sigmoid",
            "silu",
            "tanh",
        ]
    )
    fusing: ClassVar[frozenset[str]] = frozenset(get_args(CoreMLOperator))

    quantizer: Literal["coreml"]
    dynamic: Static = False
    modules: dict[ModuleName, CoreMLScheme | Literal["none"]] = Field(
        default={}, description=OF_MODULES
    )
    operators: dict[Literal[CoreMLOperator, CoreMLFollower], CoreMLScheme | Literal["none"]] = (
        Field(
            default={},
            description=f"{OF_OPERATORS} Pools and the like are quantized as what they read, or "
            "not: `none`.",
        )
    )

    @field_validator("operators")
    @classmethod
    def _followers_have_no_options(cls, overrides: dict[str, Any]) -> dict[str, Any]:
        for name, override in overrides.items():
            if override != NOT and name in get_args(CoreMLFollower):
                raise PydanticCustomError(
                    "rule",
                    "must say none of {name}, which else is quantized as what it reads",
                    {"name": name},
                )
        return overrides

    def observes(self, scheme: CoreMLScheme) -> bool:
        return scheme.activation_dtype != "float32"


def _coreml_partitioner(options: CoreMLOptions) -> Partitioner:
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner

    return CoreMLPartitioner(
        skip_ops_for_coreml_delegation=_skipped(options.skip_ops_for_coreml_delegation),
        compile_specs=_coreml_specs(options),
        take_over_mutable_buffer=options.take_over_mutable_buffer,
        lower_full_graph=options.lower_full_graph,
        take_over_constant_data=options.take_over_constant_data,
    )


def _coreml_specs(options: CoreMLOptions) -> list[CompileSpec]:
    import coremltools as ct
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from executorch.backends.apple.coreml.compiler.coreml_preprocess import (
        MULTIMETHOD_WEIGHT_SHARING_STRATEGY as STRATEGY,
    )

    _check_passes(options.pass_names)
    targets = {name.lower(): target for name, target in ct.target.__members__.items()}
    target, quantizer = options.minimum_deployment_target, options.op_linear_quantizer_config
    specs = CoreMLBackend.generate_compile_specs(
        compute_unit=ct.ComputeUnit[options.compute_unit.upper()],
        minimum_deployment_target=targets[target] if target is not None else None,
        compute_precision=ct.precision[options.compute_precision.upper()],
        model_type=CoreMLBackend.MODEL_TYPE(options.model_type),
        op_linear_quantizer_config=quantizer.resolved() if quantizer is not None else None,
        pass_names=list(options.pass_names) if options.pass_names is not None else None,
    )
    strategy = STRATEGY(options.multimethod_weight_sharing_strategy)
    if strategy is not STRATEGY.POSITIONAL:
        specs.append(
            CoreMLBackend.generate_multimethod_weight_sharing_strategy_compile_spec(strategy)
        )
    return specs


def _skipped(names: tuple[str, ...] | None) -> list[str] | None:
    """The partitioner compares with an operator's name in lower case, which before the edge
    dialect has no namespace."""
    if names is None:
        return None
    edge_operators(names, "skip_ops_for_coreml_delegation")
    lowered = [name.lower() for name in names]
    return [form for name in lowered for form in (name, name.partition(".")[2])]


def _check_passes(names: tuple[str, ...] | None) -> None:
    from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY

    unknown = [name for name in names or () if name not in PASS_REGISTRY]
    if unknown:
        hint = did_you_mean(unknown[0], sorted(PASS_REGISTRY.passes))
        raise PipelineError(f"pass_names: no pass {', '.join(unknown)}; {hint}")


def _coreml_quantizer(config: CoreMLQuantize) -> Quantizer:
    from pipeline.backends.coreml import quantizer as coreml_quantizer

    return coreml_quantizer.make_quantizer(config)


def _coreml_reproducible() -> AbstractContextManager[None]:
    from pipeline.backends.coreml import reproducible as coreml_bytes

    return coreml_bytes.reproducible()


_COREML = "executorch.backends.apple.coreml."
_GENERATE = f"{_COREML}compiler.coreml_preprocess:CoreMLBackend.generate_"
_COREML_CONSTRUCTORS = (
    Constructor(
        f"{_COREML}partition.coreml_partitioner:CoreMLPartitioner",
        left_out={"compile_specs": "made of the other options"},
    ),
    Constructor(f"{_GENERATE}compile_specs"),
    Constructor(
        f"{_GENERATE}multimethod_weight_sharing_strategy_compile_spec",
        renamed={"multimethod_weight_sharing_strategy": "strategy"},
    ),
    Constructor(
        "coremltools.optimize.torch.quantization.quantization_config:ModuleLinearQuantizerConfig",
        of="quantizer",
        left_out={
            "algorithm": "how a model is trained",
            "milestones": "how a model is trained",
        },
    ),
)

ENTRIES = (
    Backend(
        name="coreml",
        backend_id="CoreMLBackend",
        details="executorch.backends.apple.coreml.compiler.coreml_preprocess:CoreMLBackend",
        summary="Apple's devices: neural engine, GPU, CPU",
        options=CoreMLOptions,
        quantizer=CoreMLQuantize,
        distributions=(
            "cattrs",
            "coremltools",
            "executorch",
            "flatbuffers",
            "protobuf",
            "torch",
            "torchao",
        ),
        joint=True,
        make_partitioner=_coreml_partitioner,
        make_quantizer=_coreml_quantizer,
        around_preprocess=_coreml_reproducible,
        constructors=_COREML_CONSTRUCTORS,
        beyond={"dynamic": "always false"},
        cannot_run=on_a_mac("Core ML"),
        reasons=reasons.of_coreml,
        looks_into=frozenset(),
    ),
)
