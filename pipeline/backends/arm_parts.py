"""Arm's partitioners and quantizers, made of a config's options.

TOSA's partitioner is mended on the way: what it makes follows no set's order, and a method of
which it can take nothing, because Arm's quantizer saw nothing of it, is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from executorch.backends.arm.common.annotation_meta import ArmAnnotationInfo
from executorch.backends.arm.common.arm_compile_spec import ArmCompileSpec
from executorch.backends.arm.common.pipeline_config import (
    LeakyReLULoweringConfig,
    QuantizeInfConfig,
    SoftmaxDecompositionConfig,
)
from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
from executorch.backends.arm.quantizer import (
    EthosUQuantizer,
    TOSAQuantizer,
    VgfQuantizer,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
)
from executorch.backends.arm.tosa import partitioner as upstream
from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
from executorch.backends.arm.tosa.partitioner import TOSAPartitioner
from executorch.backends.arm.vgf import VgfCompileSpec, VgfPartitioner
from executorch.exir.backend.partitioner import PartitionResult
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from pipeline.backends.arm import PassOptions
from pipeline.backends.ethos_u import EthosUOptions, EthosUQuantize
from pipeline.backends.vgf import VgfOptions, VgfQuantize
from pipeline.errors import PipelineError

_PASSES = tuple(PassOptions.model_fields)


def compile_spec(options: Any) -> ArmCompileSpec:
    """That of a partitioner's options or a quantizer's."""
    if isinstance(options, EthosUOptions):
        flags = list(options.extra_flags) if options.extra_flags else None
        spec = EthosUCompileSpec(
            options.target, options.system_config, options.memory_mode, flags, options.config_ini
        )
    elif isinstance(options, EthosUQuantize):
        spec = EthosUCompileSpec(options.target)
    elif isinstance(options, VgfOptions):
        spec = VgfCompileSpec(options.tosa_spec, list(options.compiler_flags or ()))
    elif isinstance(options, VgfQuantize):
        spec = VgfCompileSpec(options.tosa_spec)
    else:
        spec = TosaCompileSpec(options.tosa_spec)
    _set_passes(spec, options)
    return spec


def _set_passes(spec: ArmCompileSpec, options: Any) -> None:
    """Leaves the spec as it is where nothing is said, as a plain script does."""
    if all(getattr(options, n) == type(options).model_fields[n].default for n in _PASSES):
        return
    config = spec._create_default_pipeline_config()
    if options.softmax is not None:
        config.softmax = SoftmaxDecompositionConfig[options.softmax.upper()]
    config.leaky_relu = LeakyReLULoweringConfig[options.leaky_relu.upper()]
    config.quantize_inf = QuantizeInfConfig(options.quantize_neg_inf, options.quantize_pos_inf)
    spec.set_pass_pipeline_config(config)


def make_partitioner(options: Any) -> TOSAPartitioner:
    spec = compile_spec(options)
    if isinstance(options, EthosUOptions):
        made, name, target = EthosUPartitioner(spec), "ethos-u", f"target: {options.target}"
    else:
        target = f"tosa_spec: {options.tosa_spec}"
        if isinstance(options, VgfOptions):
            made, name = VgfPartitioner(spec), "vgf"
        else:
            made, name = TOSAPartitioner(spec), "tosa"
    made.partition = _mended(made, name, target)  # the classes are final
    return made


def make_quantizer(config: Any) -> TOSAQuantizer:
    kinds = {"ethos-u": EthosUQuantizer, "vgf": VgfQuantizer, "tosa": TOSAQuantizer}
    quantizer = kinds[config.quantizer](compile_spec(config))
    return quantizer.set_global(quantization(config))


def quantization(config: Any) -> Any:
    if config.activations == "int16":
        smallest = {} if config.eps is None else {"epsilon": config.eps}
        return get_symmetric_a16w8_quantization_config(
            is_per_channel=config.per_channel, is_dynamic=config.dynamic, **smallest
        )
    smallest = {} if config.eps is None else {"eps": config.eps}
    return get_symmetric_quantization_config(
        is_per_channel=config.per_channel,
        is_dynamic=config.dynamic,
        act_qmin=config.act_qmin,
        act_qmax=config.act_qmax,
        weight_qmin=config.weight_qmin,
        weight_qmax=config.weight_qmax,
        **smallest,
    )


def _mended(
    partitioner: TOSAPartitioner, name: str, target: str
) -> Callable[[ExportedProgram], PartitionResult]:
    original = partitioner.partition

    def partition(program: ExportedProgram) -> PartitionResult:
        with _components_in_order():
            result = original(program)
        integer_only = not partitioner.tosa_spec.support_float()
        if not result.partition_tags and integer_only and _is_float(program.graph_module):
            raise PipelineError(
                f"{name} takes operators that its own quantizer has seen, and the method has none, "
                "so nothing would be delegated; add "
                f"`quantize: {{quantizer: {name}, {target}}}` or leave {name} out"
            )
        # Partitions are lowered in the order of this mapping, which was made of a set.
        tags = dict(sorted(result.partition_tags.items(), key=lambda item: _number(item[0])))
        return PartitionResult(result.tagged_exported_program, tags)

    return partition


def _number(tag: str) -> int:
    return int(tag.removeprefix("tag"))


def _is_float(module: GraphModule) -> bool:
    """Whether it computes in floating point, and Arm's quantizer has seen nothing of it: without
    its mark TOSAPartitioner leaves operators alone, wherever the quantization came from."""
    nodes = [
        node
        for graph in module.modules()
        if isinstance(graph, GraphModule)
        for node in graph.graph.nodes
        if isinstance(node.target, EdgeOpOverload)
    ]
    marked = ArmAnnotationInfo.CUSTOM_META_KEY
    if any(marked in node.meta.get("custom", ()) for node in nodes):
        return False
    values = [node.meta.get("val") for node in nodes]
    return any(isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in values)


@contextmanager
def _components_in_order() -> Iterator[None]:
    """Where a partition falls apart, TOSAPartitioner numbers the parts as a set of nodes, which
    hash by their addresses, happens to give them (executorch #19045). Within it, they are numbered
    as the graph goes."""
    original = upstream._find_connected_components

    def in_order(nodes: set[Node]) -> list[set[Node]]:
        graphs = {node.graph for node in nodes}
        places = {node: place for graph in graphs for place, node in enumerate(graph.nodes)}
        return sorted(original(nodes), key=lambda part: min(places[node] for node in part))

    upstream._find_connected_components = in_order
    try:
        yield
    finally:
        upstream._find_connected_components = original
