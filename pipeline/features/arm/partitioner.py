"""Works around problems of Arm's partitioners.

They number partitions in the order of the graph rather than of a set, leave out nodes that their
backend would fail on, and warn if they take nothing from a method because Arm's quantizer didn't
quantize it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

import torch
from executorch.backends.arm.common.annotation_meta import ArmAnnotationInfo
from executorch.backends.arm.common.arm_compile_spec import ArmCompileSpec
from executorch.backends.arm.constants import Q_OPS
from executorch.backends.arm.tosa import partitioner as upstream
from executorch.backends.arm.tosa.partitioner import TOSAPartitioner
from executorch.exir.backend.partitioner import PartitionResult
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.passes.operator_support import create_op_support

from pipeline.program.graphs import feeds_control_flow, iter_nodes
from pipeline.program.patching import wrapped

_log = logging.getLogger(__name__)


def make_partitioner(
    kind: type[TOSAPartitioner], spec: ArmCompileSpec, name: str, hint: str
) -> TOSAPartitioner:
    """Return a partitioner that logs a warning for a method that isn't quantized for it.

    Args:
        name: the backend's name.
        hint: the options of `quantize` that an unquantized method lacks.
    """
    partitioner = kind(spec, [create_op_support(partial(_can_be_lowered, spec))])
    original = partitioner.partition

    def partition(program: ExportedProgram) -> PartitionResult:
        _forget_constants_of_branches(program)
        with wrapped(upstream, "_find_connected_components", _find_in_order):
            result = original(program)
        integer_only = not partitioner.tosa_spec.support_float()
        if not result.partition_tags and integer_only and _is_float(program):
            _log.warning(
                "%s takes only operators that its own quantizer quantized; the method has none, "
                "so nothing is delegated; add `quantize: {%s}` or leave %s out",
                name,
                hint,
                name,
            )
        # Partitions are lowered in the order of this mapping, which upstream builds from a set.
        tags = sorted(
            result.partition_tags, key=lambda tag: int(tag.removeprefix("tag"))
        )
        numbered = {tag: result.partition_tags[tag] for tag in tags}
        return PartitionResult(result.tagged_exported_program, numbered)

    partitioner.partition = partition  # the classes are final
    return partitioner


def _can_be_lowered(
    spec: ArmCompileSpec, submodules: Mapping[str, torch.nn.Module], node: Node
) -> bool:
    """Return False for operators that TOSAPartitioner takes but TOSABackend fails on.

    The failure would be a traceback from one of its passes. The bytes of other partitions don't
    change.
    """
    takes_int64 = spec.tosa_spec.support_extension("int64")
    return (takes_int64 or not _reads_int64_of_branch(node)) and not _drops_dimensions(
        node
    )


def _reads_int64_of_branch(node: Node) -> bool:
    """Return whether a node reads an integer constant of a branch, such as the 2 of `x * 2`.

    In the outermost graph a constant is a placeholder, which is moved into the partition and
    folded. In a branch it is a `get_attr`, which stays outside, although upstream's check treats it
    as a constant, too: the partition would have an int64 input, which TOSA doesn't support.
    """
    constants = [i.meta.get("val") for i in node.all_input_nodes if i.op == "get_attr"]
    return any(getattr(value, "dtype", None) == torch.int64 for value in constants)


def _drops_dimensions(node: Node) -> bool:
    """Return whether a node reduces a tensor to a scalar that leaves the partition.

    An example is a sum over all dimensions, whose value is returned, quantized, or passed to a
    control flow operator as a predicate.

    If a floating-point operator of the partition reads the result, upstream adds dimensions again.
    """
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim():
        return False
    leaves = any(user.op == "output" or user.target in Q_OPS for user in node.users)
    if not leaves and not feeds_control_flow(node):
        return False
    inputs = [input_node.meta.get("val") for input_node in node.all_input_nodes]
    return any(isinstance(value, torch.Tensor) and value.dim() for value in inputs)


def _forget_constants_of_branches(program: ExportedProgram) -> None:
    """Replace values that a branch computes from constants alone with fake values of the same type.

    If such a value were an input of a partition, torch would run the passes' TOSA operators on it,
    which have no kernels.
    """
    for node in iter_nodes(program):
        if node.op != "call_function" or node.graph is program.graph:
            continue
        value = node.meta.get("val")
        if isinstance(value, FakeTensor) and value.constant is not None:
            with value.fake_mode:
                node.meta["val"] = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype
                )


def _is_float(program: ExportedProgram) -> bool:
    """Return whether a method computes in floating point and has no mark of Arm's quantizer.

    TOSAPartitioner takes no operator without that mark, whichever quantizer quantized it.
    """
    nodes = [
        node for node in iter_nodes(program) if isinstance(node.target, EdgeOpOverload)
    ]
    marked = ArmAnnotationInfo.CUSTOM_META_KEY
    if any(
        node.meta.get("custom", {}).get(marked, {}).get("quantized") for node in nodes
    ):
        return False
    values = [node.meta.get("val") for node in nodes]
    return any(
        isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in values
    )


def _find_in_order(
    original: Callable[[set[Node]], list[set[Node]]], nodes: set[Node]
) -> list[set[Node]]:
    """Return the components of a disconnected partition in the order of the graph.

    TOSAPartitioner numbers them in the order of a set of nodes, which hash by address (executorch
    #19045).
    """
    places: dict[Node, int] = {}
    for graph in {node.graph for node in nodes}:
        places.update({node: place for place, node in enumerate(graph.nodes)})
    return sorted(original(nodes), key=lambda part: min(places[node] for node in part))
