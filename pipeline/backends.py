"""The backend catalogue: what a config can tell each backend, and how to build its parts.

One entry a backend, and no torch until a part is built: configs are checked and the JSON schema is
written from this table alone. A backend is added by writing its options and its entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SerializeAsAny
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torch.fx import Node
    from torchao.quantization.pt2e.quantizer import Quantizer


class Options(BaseModel):
    """A part of a config. `resolved()` is what it says with every default filled in, as plain JSON
    values; it is part of cache keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def resolved(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


def _distinct(names: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(names)) < len(names):
        raise PydanticCustomError("rule", "must name each only once")
    return names


_T = TypeVar("_T")
# A list in YAML, a tuple here: not empty, and no member twice.
Distinct = Annotated[
    tuple[_T, ...],
    Field(strict=False, min_length=1, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_distinct),
]


class PartitionerSpec(Options):
    """One item of `partitioners`: a backend and the options of its partitioner."""

    name: str
    options: SerializeAsAny[Options]

    @property
    def backend(self) -> Backend:
        return BACKENDS[self.name]


class QuantizeConfig(Options):
    """How a method is quantized. Each quantizer adds its own options to these."""

    quantizer: str = Field(description="The backend whose quantizer annotates the method.")
    dynamic: bool = Field(
        default=False,
        description="Quantize activations as they come. If false, their ranges are observed on "
        "the model's calibration inputs.",
    )

    @property
    def backend(self) -> Backend:
        return BACKENDS[self.quantizer]


Remap = Callable[[bytes, Mapping[int, int]], bytes | None]


@dataclass(frozen=True)
class Sight:
    """What a backend's preprocess function sees of a partition; by default, everything.

    Only what is known not to change its output may be left out: the cache then takes partitions
    that differ in nothing else for one.

    `names_count`: whether names of nodes and tensors can matter in this program.
    `unread`: keys of `node.meta` that it does not read.
    `read`: what it reads of them all the same, for the nodes of one graph.
    `remap`: gives a payload other debug handles, byte for byte as if it had been made with them,
        or None if it can't; a payload that holds none is given back. Without it, debug handles
        are seen.
    `fixed_handles`: those that mean something to the payload, and so are seen in any case.
    """

    names_count: Callable[[ExportedProgram], bool] = lambda program: True
    unread: frozenset[str] = frozenset()
    read: Callable[[Sequence[Node]], Sequence[Any]] = lambda nodes: [None] * len(nodes)
    remap: Remap | None = None
    fixed_handles: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Backend:
    """`backend_id` is the name by which a program calls the delegate. `distributions` are those
    whose versions can change what it makes. A `joint` backend sees all methods at once.
    `names_count`: whether what it makes of a method can depend on the names of its values."""

    name: str
    backend_id: str
    options: type[Options]
    quantizer: type[QuantizeConfig] | None
    distributions: tuple[str, ...]
    joint: bool
    make_partitioner: Callable[[Any], Partitioner]
    make_quantizer: Callable[[Any], Quantizer | None] = lambda options: None
    make_sight: Callable[[], Sight] = Sight
    names_count: bool = True


def make_partitioners(specs: Iterable[PartitionerSpec]) -> list[Partitioner]:
    """In the order of the config, which is the order in which they are tried."""
    return [spec.backend.make_partitioner(spec.options) for spec in specs]


def make_quantizer(config: QuantizeConfig) -> Quantizer:
    quantizer = config.backend.make_quantizer(config)
    assert quantizer is not None, f"{config.quantizer} has options of a quantizer, but makes none"
    return quantizer


# XNNPACK, for CPUs: executorch/backends/xnnpack

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
    from pipeline import xnnpack

    return Sight(
        names_count=xnnpack.names_count,
        unread=xnnpack.UNREAD,
        read=xnnpack.read,
        remap=xnnpack.remap_handles,
        fixed_handles=xnnpack.FIXED_HANDLES,
    )


BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {
        backend.name: backend
        for backend in (
            Backend(
                name="xnnpack",
                backend_id="XnnpackBackend",
                options=XnnpackOptions,
                quantizer=XnnpackQuantize,
                distributions=("executorch", "flatbuffers", "torch", "torchao"),
                joint=False,
                make_partitioner=_xnnpack_partitioner,
                make_quantizer=_xnnpack_quantizer,
                make_sight=_xnnpack_sight,
                names_count=False,
            ),
        )
    }
)
