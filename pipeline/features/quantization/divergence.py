"""Finds the first operator at which a prepared module diverges from its float program.

Preparing keeps the names of nodes and removes nodes that it folds into others. So the nodes of both
graphs are paired by name, each with the last node that was folded into it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node

from pipeline.features.quantization.noise import measure_noise, round_figure
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import operator_name

_log = logging.getLogger(__name__)


def find_divergence(
    program: ExportedProgram,
    source: GraphModule,
    prepared: GraphModule,
    inputs: Sequence[Any],
    same_inputs: Sequence[Any],
    limit: float,
) -> dict[str, Any] | None:
    """Return the first operator whose value has an SQNR below the limit in dB, or None.

    Only operators that both graphs have are compared.

    Args:
        inputs, same_inputs: the leaves of the same call, one copy per run.
    """
    pairs = list(_pair_nodes(source, prepared))
    expected = _record(source, inputs, {last.name for _, last, _ in pairs})
    actual = _record(prepared, same_inputs, {node.name for node, _, _ in pairs})
    places = {node.name: place for place, node in enumerate(program.graph.nodes)}
    for node, last, folded in pairs:
        if node.name not in actual or last.name not in expected:
            continue
        sqnr = measure_noise(actual[node.name], expected[last.name]).sqnr
        if sqnr < limit:
            return {
                "node": node.name,
                "place": places.get(node.name),
                "operator": operator_name(node),
                "module": innermost_module(node),
                "folded": _name_operators(folded),
                "shared": _shared_constant(node),
                "sqnr_db": round_figure(sqnr),
            }
    return None


def _name_operators(nodes: Sequence[Node]) -> list[tuple[str, str]]:
    """Return the operators of nodes, each with its module."""
    return [(operator_name(node), innermost_module(node)) for node in nodes]


def _pair_nodes(
    source: GraphModule, prepared: GraphModule
) -> Iterator[tuple[Node, Node, list[Node]]]:
    """Yield the operators that both graphs have.

    Each comes with the last node that was folded into it, and with all folded nodes.
    """
    prepared_names = {node.name for node in prepared.graph.nodes}
    for node in source.graph.nodes:
        if node.op != "call_function" or node.name not in prepared_names:
            continue
        last = node
        folded = []
        while len(last.users) == 1:
            (user,) = last.users
            if user.op != "call_function" or user.name in prepared_names:
                break
            folded.append(user)
            last = user
        yield node, last, folded


def _shared_constant(node: Node) -> str:
    """Return the name of a constant that this operator shares with others, or ""."""
    for constant in node.all_input_nodes:
        if constant.op != "get_attr":
            continue
        readers = []
        for n in node.graph.nodes:
            if n.op == "get_attr" and n.target == constant.target:
                readers.append(n)
        if sum(len(reader.users) for reader in readers) > 1:
            return str(constant.target)
    return ""


def _record(
    module: GraphModule, inputs: Sequence[Any], names: set[str]
) -> Mapping[str, Tensor]:
    recorder = _Recorder(module, names)
    recorder.run(*inputs, enable_io_processing=False)
    return recorder.values


def rounds_values(prepared: GraphModule) -> bool:
    """Return whether a prepared module rounds while it observes, as with Core ML's quantizer."""
    return any(hasattr(module, "fake_quant_enabled") for module in prepared.modules())


def run_unobserved(prepared: GraphModule, inputs: Sequence[Any]) -> Any:
    """Run a prepared module on the leaves of a call, bypassing its observers."""
    return _Unobserved(prepared).run(*inputs, enable_io_processing=False)


class _Unobserved(Interpreter):
    """Runs a graph without its observers."""

    def call_module(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if hasattr(self.fetch_attr(target), "calculate_qparams"):
            return args[0]
        return super().call_module(target, args, kwargs)


class _Recorder(_Unobserved):
    """Keeps the tensors that named nodes produce."""

    def __init__(self, module: GraphModule, names: set[str]) -> None:
        super().__init__(module)
        self._names = names
        self.values: dict[str, Tensor] = {}

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if (
            n.name in self._names
            and isinstance(result, Tensor)
            and result.is_floating_point()
        ):
            self.values[n.name] = result.detach().clone()
        return result
