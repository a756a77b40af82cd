"""Skips tracing for passes on the way to the edge dialect that don't change the graph.

Each of some nine passes ends by tracing the graph again, which copies it node by node and computes
every value on fake tensors; most passes change nothing. To see whether a pass would change a graph,
its code is run over the nodes with the values that they already have, which computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from executorch.exir.pass_base import (
    ExportPass,
    NodeMetadata,
    ProxyValue,
    _ExportPassBase,
)
from executorch.exir.program import _program
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.fx.passes.infra.pass_base import PassResult

from pipeline.features.speedups.pass_values import kept_values
from pipeline.features.speedups.patch import functions_of
from pipeline.program.patching import replaced
from pipeline.program.traced import Traced, find_attribute

# The functions whose source code this module was written for.
SOURCES = (
    _program._generate_edge_program,
    _program._get_aten_to_edge_passes,
    _ExportPassBase.call,
    _ExportPassBase.call_submodule,
    *functions_of(_ExportPassBase.ExportInterpreter),
    _ExportPassBase._fx,
    ExportPass.call_submodule,
    *functions_of(ExportPass.ExportInterpreter),
    *functions_of(NodeMetadata),
)


def make_edge_program(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement for `_generate_edge_program`."""

    def generate(*args: Any, **kwargs: Any) -> Any:
        traced = Traced()

        def skip(trace: Callable[..., PassResult]) -> Callable[..., PassResult]:
            def call_submodule(
                self: ExportPass, module: GraphModule, inputs: Any
            ) -> PassResult:
                if traced.holds(module) and is_idle(self, module):
                    return PassResult(module, True)
                result = trace(self, module, inputs)
                traced.keep(result.graph_module)
                return result

            return call_submodule

        with kept_values(), replaced(ExportPass, "call_submodule", skip):
            return original(*args, **kwargs)

    return generate


def is_idle(graph_pass: ExportPass, module: GraphModule) -> bool:
    """Return whether a pass calls, for each node of a graph, what the node calls, and no more.

    The graph must be one for which `Traced.holds` returns true.
    """
    if any(
        getattr(type(graph_pass), hook) is not getattr(ExportPass, hook)
        for hook in _HOOKS
    ):
        return False
    interpreter = graph_pass.ExportInterpreter(graph_pass, module)
    values: dict[Node, Any] = {}

    def trace(
        kind: str, target: Any, args: Any, kwargs: Any, meta: NodeMetadata
    ) -> ProxyValue:
        node = interpreter.node
        called = map_arg((node.args, node.kwargs), values.__getitem__)
        if (
            target is not node.target
            or not _is_same((tuple(args), dict(kwargs)), called)
            or node in values
            or not _is_same(meta.data, node.meta)
        ):
            raise _ChangesError
        result = values[node] = ProxyValue(node.meta["val"], node)
        return result

    vars(graph_pass)["_fx"] = trace
    try:
        for node in module.graph.nodes:
            if node.op == "call_function":
                interpreter.node = node
                args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
                result = interpreter.call_function(node.target, args, kwargs)
                if result is not values.get(node):
                    return False
            elif node.op == "placeholder":
                values[node] = ProxyValue(node.meta["val"], node)
            elif node.op == "get_attr":
                values[node] = find_attribute(node, module)
    except Exception:  # the pass needs a real trace, which reports any error
        return False
    finally:
        del vars(graph_pass)["_fx"]
    return True


_HOOKS = ("placeholder", "output", "on_attr")  # hooks that are not called here


class _ChangesError(Exception):
    """A pass calls something other than what the node calls."""


def _is_same(nest: Any, other_nest: Any) -> bool:
    """Return whether two nests of lists and mappings hold the same objects."""
    if nest is other_nest:
        return True
    if isinstance(nest, Mapping) and isinstance(other_nest, Mapping):
        return nest.keys() == other_nest.keys() and all(
            _is_same(nest[key], other_nest[key]) for key in nest
        )
    if isinstance(nest, list | tuple) and isinstance(other_nest, list | tuple):
        return len(nest) == len(other_nest) and all(map(_is_same, nest, other_nest))
    plain = nest.__class__ is other_nest.__class__ and isinstance(
        nest, int | float | str
    )
    return plain and nest == other_nest
