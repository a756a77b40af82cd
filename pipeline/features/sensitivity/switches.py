"""A quantized program whose operators can be switched back to float, without calibrating again.

Which values are rounded for which operator is found out by subclasses, each for a kind of
quantizer. What follows is a close imitation of quantizing again; proposals are verified by that.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.program.operators import base_name

# A dequantized value by the name of its node, the name of its reader, and what the reader gets in
# float: the name of a node, or (True) of an attribute that holds a weight; then the operators that
# ask for the rounding.
Edge = tuple[str, str, str, bool, frozenset[str]]
FLOAT_WEIGHT = "_float_weight_"


class QuantizationSwitches:
    """A quantized program, and which of its operators are quantized.

    Attributes:
        operators: the name of each operator that the quantizer quantizes on its own, in the order
            of the graph, with its module; what is fused into one or shares its ranges goes with it.
        kinds: the operators by their kind, such as `conv2d`.
        module, program: the quantized program; keeps_state: whether it changes buffers.
        edges: the values that it rounds.
        saved: bytes that the weights of each operator take less than in float; a weight that
            several read counts once.
    """

    def __init__(self, quantized: ExportedProgram) -> None:
        """Take a quantized program. A subclass fills the other attributes, then calls `freeze`."""
        self._source = Source(quantized)
        self.module: GraphModule = self._source.module
        self.program = quantized
        self.keeps_state = bool(self._source.state)
        self.operators: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.saved: dict[str, int] = {}
        self.edges: list[Edge] = []

    def freeze(self) -> None:
        """Begin each switch with the graph as it is now."""
        self._graph = copy.deepcopy(self.module.graph)

    def switch(self, quantized: frozenset[str]) -> None:
        """Quantize these operators, and compute the others in float."""
        graph = copy.deepcopy(self._graph)
        nodes = {node.name: node for node in graph.nodes}
        for name, reader, replacement, is_weight, operators in self.edges:
            if not quantized.isdisjoint(operators):
                continue
            if is_weight:
                with graph.inserting_before(nodes[reader]):
                    value = graph.get_attr(replacement)
            else:
                value = nodes[replacement]
            nodes[reader].replace_input_with(nodes[name], value)
        for name in {edge[0] for edge in self.edges}:
            _erase_unread(nodes[name])
        module = GraphModule(self.module, graph)
        self._source.module = module

    def run(self, inputs: InputSet) -> list[Any]:
        """Return the flat outputs of a call from the initial state, as `Source.run` does."""
        self._source.reset()
        return self._source.run(inputs)


def is_rounding(node: Node) -> bool:
    """Tell whether a node rounds a value, or chooses how."""
    prefixes = ("quantize", "dequantize", "choose_qparams")
    return any(is_call(node, prefix) for prefix in prefixes)


def is_call(node: Node, prefix: str) -> bool:
    """Tell whether a node calls an operator whose name begins so."""
    return node.op == "call_function" and base_name(node).startswith(prefix)


def _erase_unread(node: Node) -> None:
    """Erase a node that nothing reads, and what was computed for it by quantizing operators."""
    if node.users or not is_rounding(node):
        return
    sources = node.all_input_nodes
    node.graph.erase_node(node)
    for source in sources:
        _erase_unread(source)


def measure_noise(actual: Any, expected: Any) -> float:
    """Return the sum of squares of a difference over that of the expected tensor; infinite where
    they can't be compared."""
    if not isinstance(actual, torch.Tensor) or actual.shape != expected.shape:
        return float("inf")
    a = actual.detach().double()
    e = expected.detach().double()
    finite = a.isfinite() & e.isfinite()
    if bool((~finite & (a != e) & ~(a.isnan() & e.isnan())).any()):
        return float("inf")
    signal = float(e[finite].square().sum())
    noise = float((a[finite] - e[finite]).square().sum())
    if not signal:
        return float("inf") if noise else 0.0
    return noise / signal


def name_origins(
    program: ExportedProgram, origins: Mapping[str, int]
) -> dict[str, str]:
    """Return the name in a float program of each node of its quantized program."""
    names = [node.name for node in program.graph.nodes]
    return {name: names[place] for name, place in origins.items() if place < len(names)}
