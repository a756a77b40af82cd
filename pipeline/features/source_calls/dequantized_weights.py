"""Float weights of quantized programs, computed once for all calls of a validation.

A quantized program dequantizes its weights in every call. For a decoder of 0.42 B parameters in 4
bits, that takes longer than everything else that a call computes.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from pipeline.program.eager import Source
from pipeline.program.graph_runner import CallNode, GraphRunner
from pipeline.program.operators import base_name
from pipeline.program.quantized_values import dequantizes_constant
from pipeline.store.digest import Digest, hash_bytes, hash_json

# Bytes of float weights to hold. The running method's weights displace those of other methods;
# weights that don't fit are computed in every call.
MOST_BYTES = 2 << 30
# The namespaces of operators that depend on nothing but their arguments.
_LIBRARIES = frozenset({"aten", "quantized_decomposed", "torchao"})


class DequantizedWeights:
    """The float weights of one package's programs, shared by its lanes.

    Methods share them, too: what a node computes depends only on the content of its arguments.
    Hashing 4-bit weights takes at most a seventh of the time of dequantizing them.
    """

    def __init__(self) -> None:
        self._contents: dict[Graph, dict[Node, Digest]] = {}
        # By content, the weights with their versions; a change in place raises the version.
        self._weights: dict[Digest, tuple[Tensor, int]] = {}
        self._bytes = 0

    def serve(self, source: Source) -> None:
        """Make a source take its weights from here. Its outputs stay the same."""
        nodes = _find_dequantizing(source)
        if not nodes:
            return
        if source.runner is None:
            call_node = self._serve_nodes(nodes, _call)
            source.runner = _ModuleRunner(source.module, call_node)
        else:
            call_node = self._serve_nodes(nodes, source.runner.call_node)
            source.runner = GraphRunner(source.module, call_node)

    def _serve_nodes(self, nodes: set[Node], call_node: CallNode) -> CallNode:
        def call(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if node not in nodes:
                return call_node(node, args, kwargs)
            contents = self._contents.setdefault(node.graph, {})
            if node not in contents:
                contents[node] = _hash_content(node, args, kwargs)
            weight, version = self._weights.get(contents[node], (None, 0))
            if weight is None or weight._version != version:
                weight = call_node(node, args, kwargs)
                self._hold(node, weight)
            return weight

        return call

    def _hold(self, node: Node, weight: Any) -> None:
        content = self._contents[node.graph][node]
        if content in self._weights:  # it was changed in place, and may be again
            return
        if self._bytes + weight.nbytes > MOST_BYTES:
            self._keep_only(node.graph)
        if self._bytes + weight.nbytes <= MOST_BYTES:
            self._weights[content] = weight, weight._version
            self._bytes += weight.nbytes

    def _keep_only(self, graph: Graph) -> None:
        """Drop the weights that only other graphs use, methods whose turn is over."""
        used = {*self._contents[graph].values()}
        self._weights = {
            content: held for content, held in self._weights.items() if content in used
        }
        self._bytes = sum(weight.nbytes for weight, _ in self._weights.values())


class _ModuleRunner(GraphRunner):
    """A runner that calls bodies of control flow as modules, with their hooks.

    No weights are taken from bodies, so it needn't see their nodes.
    """

    def _read_attribute(self, name: Any) -> Any:
        return attrgetter(name)(self._module)


def _hash_content(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Digest:
    """Return the digest of what a node computes: its operator and the content of its arguments."""
    described = pytree.tree_map(_describe, (args, kwargs))
    return hash_json([str(node.target), repr(described)])


def _describe(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    content = value.detach().contiguous().reshape(-1).view(torch.uint8)
    form = value.dtype, tuple(value.shape), value.stride()
    return form, hash_bytes(memoryview(content.numpy()))


def _call(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target: Any = node.target
    return target(*args, **kwargs)


def _find_dequantizing(source: Source) -> set[Node]:
    """Return the nodes that dequantize weights, except weights that the program changes."""
    nodes = set()
    for node in source.module.graph.nodes:
        if not dequantizes_constant(node, base_name(node)):
            continue
        if getattr(node.target, "namespace", "") not in _LIBRARIES:
            continue
        names = {argument.target for argument in node.all_input_nodes}
        if names.isdisjoint(source.state):
            nodes.add(node)
    return nodes
