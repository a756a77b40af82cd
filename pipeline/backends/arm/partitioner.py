"""Arm's partitioners, mended: what they make follows no set's order, they leave alone what their
backend then fails on, and a method of which they can take nothing, because Arm's quantizer saw
nothing of it, is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from executorch.backends.arm.common.annotation_meta import ArmAnnotationInfo
from executorch.backends.arm.constants import Q_OPS
from executorch.backends.arm.tosa import partitioner as upstream
from executorch.backends.arm.tosa.partitioner import TOSAPartitioner
from executorch.exir.backend.partitioner import PartitionResult
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.passes.operator_support import OperatorSupportBase

from pipeline.backends.arm.passes import compile_spec
from pipeline.backends.patching import wrapped
from pipeline.store.errors import PipelineError


def make_partitioner(
    options: Any, name: str, target: str, kind: type[TOSAPartitioner]
) -> TOSAPartitioner:
    """Return a partitioner that raises PipelineError for a method that was not quantized for it.

    Args:
        name: of the backend.
        target: the option that says which device is meant, here and in `quantize`.
        kind: the partitioner's class.
    """
    spec = compile_spec(options)
    takes_int64 = spec.tosa_spec.support_extension("int64")
    made = kind(spec, [_LeftAlone(takes_int64)])
    hint = f"quantizer: {name}, {target}: {getattr(options, target)}"
    original = made.partition

    def partition(program: ExportedProgram) -> PartitionResult:
        _forget_constants_of_branches(program)
        with wrapped(upstream, "_find_connected_components", _find_in_order):
            result = original(program)
        integer_only = not made.tosa_spec.support_float()
        if not result.partition_tags and integer_only and _is_float(program.graph_module):
            raise PipelineError(
                f"{name} takes operators that its own quantizer has seen, and the method has none, "
                f"so nothing would be delegated; add `quantize: {{{hint}}}` or leave {name} out"
            )
        # Partitions are lowered in the order of this mapping, which was made of a set.
        numbered = sorted(
            result.partition_tags.items(), key=lambda item: int(item[0].removeprefix("tag"))
        )
        return PartitionResult(result.tagged_exported_program, dict(numbered))

    made.partition = partition  # the classes are final
    return made


class _LeftAlone(OperatorSupportBase):
    """Rejects operators that TOSAPartitioner takes, and whose partitions TOSABackend then fails
    on with a traceback out of one of its passes. Bytes of what it lowers stay as they are."""

    def __init__(self, takes_int64: bool) -> None:
        super().__init__()
        self._takes_int64 = takes_int64

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        reads = not self._takes_int64 and _reads_int64_of_branch(node)
        return not reads and not _drops_dimensions(node)


def _reads_int64_of_branch(node: Node) -> bool:
    """Return whether a node reads an integer constant of a branch, such as the 2 of `x * 2`.

    In the outermost graph a constant is a placeholder, which goes into the partition and is folded.
    In a branch it is a `get_attr`, which stays outside, though upstream's check takes it for a
    constant as well: the partition would have an input of int64, which TOSA has not.
    """
    return any(i.op == "get_attr" and _dtype(i) == torch.int64 for i in node.all_input_nodes)


def _drops_dimensions(node: Node) -> bool:
    """Return whether a node takes the last dimensions of a tensor, as a sum over all of it does,
    and its result goes to a control flow, as a predicate, to the caller, or to be quantized. Where
    an operator of the partition reads it in floating point, upstream gives it dimensions again."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim():
        return False
    given = [i.meta.get("val") for i in node.all_input_nodes]
    return any(isinstance(v, torch.Tensor) and v.dim() for v in given) and any(
        user.op == "output"
        or user.target in Q_OPS
        or isinstance(user.target, torch._ops.HigherOrderOperator)
        for user in node.users
    )


def _dtype(node: Node) -> torch.dtype | None:
    return getattr(node.meta.get("val"), "dtype", None)


def _forget_constants_of_branches(program: ExportedProgram) -> None:
    """Keep of what is computed from constants alone, in a branch, the type instead of the value.
    Where a partition has such a one as an input, torch would run the passes' operators of TOSA on
    it, which have no kernels."""
    for node in _nodes(program.graph_module):
        value = node.meta.get("val")
        known = isinstance(value, FakeTensor) and value.constant is not None
        if known and node.op == "call_function" and node.graph is not program.graph:
            with value.fake_mode:
                node.meta["val"] = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype
                )


def _nodes(module: GraphModule) -> Iterator[Node]:
    """Yield the nodes of its graph and of all branches."""
    for graph in module.modules():
        if isinstance(graph, GraphModule):
            yield from graph.graph.nodes


def _is_float(module: GraphModule) -> bool:
    """Return whether a method computes in floating point, and Arm's quantizer has seen nothing of
    it: without its mark TOSAPartitioner leaves operators alone, wherever the quantization came
    from."""
    nodes = [node for node in _nodes(module) if isinstance(node.target, EdgeOpOverload)]
    marked = ArmAnnotationInfo.CUSTOM_META_KEY
    if any(node.meta.get("custom", {}).get(marked, {}).get("quantized") for node in nodes):
        return False
    values = [node.meta.get("val") for node in nodes]
    return any(isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in values)


def _find_in_order(
    original: Callable[[set[Node]], list[set[Node]]], nodes: set[Node]
) -> list[set[Node]]:
    """Find the components of a partition that falls apart, in the order of the graph.
    TOSAPartitioner numbers them as a set of nodes, which hash by their addresses, happens to give
    them (executorch #19045)."""
    graphs = {node.graph for node in nodes}
    places = {node: place for graph in graphs for place, node in enumerate(graph.nodes)}
    return sorted(original(nodes), key=lambda part: min(places[node] for node in part))
