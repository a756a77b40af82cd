"""XNNPACK, for CPUs: executorch/backends/xnnpack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from pipeline.backends import reasons
from pipeline.backends.entry import (
    Backend,
    Lowering,
    Preprocessing,
    Quantization,
    Why,
    lazy,
)
from pipeline.backends.integer_scalars import keeping_integers
from pipeline.backends.options import (
    NAMES,
    Distinct,
    Greatest,
    Least,
    OneOf,
    Options,
    rule,
)
from pipeline.backends.quantize_options import ByModule, ByOperator, MixedQuantize

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torch.fx import Node
    from torchao.quantization.pt2e.quantizer import Quantizer

# The members of executorch's ConfigPrecisionType, in lower case.
XnnpackPrecision = Literal["fp32", "static_quant", "dynamic_quant"]


class XnnpackOptions(Options):
    """Options of `XnnpackPartitioner`."""

    per_op_mode: bool = False
    """Give every operator its own partition, instead of merging operators into larger
    partitions."""
    config_precisions: Distinct[XnnpackPrecision] | None = None
    """Delegate only operators with one of these precisions; by default, operators of any
    precision."""
    configs: Distinct[Annotated[str, OneOf("xnnpack_configs")]] | None = None
    """Delegate only operators that match one of these partitioner configs; by default, operators
    that match any config."""
    force_non_static_weights_for_f32_linear: bool = False
    "Keep the weights of float32 linear layers outside the delegate, as inputs."


class XnnpackScheme(Options):
    """Options of `get_symmetric_quantization_config`, for an `XNNPACKQuantizer`.

    Activations are int8, and weights are symmetric int8.
    """

    dynamic: bool = False
    """Quantize activations dynamically. If false, calibration inputs determine their ranges."""
    per_channel: bool = True
    """Give each output channel of a weight its own scale."""
    weight_qmin: Least = -127
    """The minimum quantized weight."""
    weight_qmax: Greatest = 127
    """The maximum quantized weight."""
    act_qmin: Least = -128
    """The minimum quantized activation."""
    act_qmax: Greatest = 127
    """The maximum quantized activation."""

    @model_validator(mode="after")
    def _ranges_are_of_static_activations(self) -> Self:
        ranges = sorted({"act_qmin", "act_qmax"} & self.model_fields_set)
        if self.dynamic and ranges:
            raise rule(
                f"must not contain `{ranges[0]}`: XNNPACK itself chooses the range of "
                "dynamically quantized activations"
            )
        return self


class XnnpackQuantize(XnnpackScheme, MixedQuantize):
    """An `XNNPACKQuantizer`, with overrides for individual modules and operators."""

    scheme: ClassVar[type[Options]] = XnnpackScheme
    fused: ClassVar[frozenset[str]] = frozenset({"relu", "hardtanh", "batch_norm"})
    fusing: ClassVar[frozenset[str]] = frozenset(NAMES["xnnpack_operators"])

    quantizer: Literal["xnnpack"]
    modules: ByModule[XnnpackScheme] = Field({})
    operators: ByOperator[Annotated[str, OneOf("xnnpack_operators")], XnnpackScheme] = (
        Field({})
    )


def _make_partitioner(options: XnnpackOptions) -> Partitioner:
    from executorch.backends.xnnpack.partition import config, xnnpack_partitioner
    from executorch.backends.xnnpack.partition.config.xnnpack_config import (
        ConfigPrecisionType,
    )

    arguments = options.model_dump()
    if options.configs:
        classes = {kind.__name__: kind for kind in config.ALL_PARTITIONER_CONFIGS}
        arguments["configs"] = [classes[name] for name in options.configs]
    if options.config_precisions:
        precisions = [
            ConfigPrecisionType[name.upper()] for name in options.config_precisions
        ]
        arguments["config_precisions"] = precisions
    partitioner = xnnpack_partitioner.XnnpackPartitioner(**arguments)
    # Skip a warning that doesn't concern us: the check reads the source of all frames (0.03 s).
    partitioner._check_if_called_from_to_backend = _is_called_from_to_backend  # type: ignore[method-assign]
    return partitioner


def _is_called_from_to_backend() -> bool:
    """Return whether `EdgeProgramManager.to_backend` calls the partitioner: never here."""
    return False


def _make_quantizer(config: XnnpackQuantize) -> Quantizer:
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack

    def make(scheme: XnnpackScheme) -> Quantizer:
        values = scheme.model_dump(
            exclude={"act_qmin", "act_qmax"} if scheme.dynamic else None
        )
        dynamic, per_channel = values.pop("dynamic"), values.pop("per_channel")
        quantizer = xnnpack.XNNPACKQuantizer().set_global(
            xnnpack.get_symmetric_quantization_config(
                per_channel, is_dynamic=dynamic, **values
            )
        )
        return keeping_integers(quantizer)

    return config.compose(make)


@contextmanager
def _reasons(partitioner: Partitioner, program: ExportedProgram) -> Iterator[Why]:
    """Collect the reasons that each partitioner config reports to `WhyNoPartition`.

    Other nodes get a reason by the name of their operator.
    """
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
    from executorch.exir.backend.canonical_partitioners import config_partitioner

    listen = reasons.reported_by(
        "executorch.exir.backend.utils:WhyNoPartition", "__call__"
    )
    with listen(partitioner, program) as why:
        yield why
    used_configs = partitioner.target_partitioner_configs  # type: ignore[attr-defined]
    all_names = {config.target_name for config in ALL_PARTITIONER_CONFIGS}
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        name = config_partitioner.format_target_name(
            getattr(node.target, "__name__", "")
        )
        if node in why:
            why[node] += _list_dtypes(node) if why[node] == "invalid dtype" else ""
        elif name in used_configs:
            why[node] = (
                "its partitioner supports such operators, but rejected this one without a reason"
            )
        elif name in all_names:
            why[node] = "`configs` leaves its config out"
        else:
            why[node] = reasons.NOT_OF_THIS_TYPE


def _list_dtypes(node: Node) -> str:
    """Return the dtypes of the tensors among a node's arguments, in order, and of its value."""
    import torch

    values = [operand.meta.get("val") for operand in (*node.all_input_nodes, node)]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    dtypes = dict.fromkeys(
        str(tensor.dtype).removeprefix("torch.") for tensor in tensors
    )
    return f": {', '.join(dtypes)}" if dtypes else ""


ENTRIES = (
    Backend(
        name="xnnpack",
        backend_id="XnnpackBackend",
        summary="CPUs: Arm, x86-64, RISC-V",
        options=XnnpackOptions,
        lowering=Lowering(
            _make_partitioner, reasons=_reasons, control_flow=frozenset()
        ),
        quantization=Quantization(
            options=XnnpackQuantize,
            make_quantizer=_make_quantizer,
            # ExecuTorch's own tests quantize this way for these backends.
            backends=frozenset({"vulkan", "webgpu"}),
        ),
        preprocessing=Preprocessing(
            details="executorch.backends.xnnpack.xnnpack_preprocess:XnnpackBackend",
            around=lazy("pipeline.features.xnnpack.passes:fast_passes"),
            pass_manager="pipeline.features.xnnpack.passes:FastPassManager",
            make_cache_scope=lazy("pipeline.features.xnnpack.cache_key:make_scope"),
            names_count=False,
            keeps_constants=True,
            names_data="executorch.backends.xnnpack.xnnpack_preprocess",
            weights_apart=True,
        ),
    ),
)
