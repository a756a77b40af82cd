"""A quantized program whose operators can be switched back to float without calibrating again.

Subclasses, one for each kind of quantizer, find out which values are rounded for which operator.
Switching closely imitates quantizing again; proposals are verified by quantizing again.
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

# A dequantized value by the name of its node; the name of its reader; the name of the value that
# the reader gets in float, a node or (True) an attribute that holds a weight; and the operators
# that require the rounding.
Edge = tuple[str, str, str, bool, frozenset[str]]
FLOAT_WEIGHT = "_float_weight_"


class QuantizationSwitches:
    """A quantized program, and which of its operators are quantized.

    Attributes:
        operators: the module of each operator that the quantizer quantizes separately, by the
            operator's name, in the order of the graph; operators that are fused into it or share
            its ranges go with it.
        kinds: the kind of each operator, such as `conv2d`, by the operator's name.
        module, program: the quantized program; keeps_state: whether it changes buffers.
        edges: the values that it rounds.
        saved: bytes that the weights of each operator save over float; a weight with several
            readers counts once.
    """

    def __init__(self, quantized: ExportedProgram) -> None:
        """Take a quantized program; subclasses fill in other attributes, then call `freeze`."""
        self._source = Source(quantized)
        self.module: GraphModule = self._source.module
        self.program = quantized
        self.keeps_state = bool(self._source.state)
        self.operators: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.saved: dict[str, int] = {}
        self.edges: list[Edge] = []

    def freeze(self) -> None:
        """Start each later switch from the current graph."""
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
    """Return whether a node rounds a value, or chooses how it is rounded."""
    prefixes = ("quantize", "dequantize", "choose_qparams")
    return any(is_call(node, prefix) for prefix in prefixes)


def is_call(node: Node, prefix: str) -> bool:
    """Return whether a node calls an operator whose name begins with a prefix."""
    return node.op == "call_function" and base_name(node).startswith(prefix)


def _erase_unread(node: Node) -> None:
    """Erase an unread rounding node, and the rounding nodes that only served it."""
    if node.users or not is_rounding(node):
        return
    sources = node.all_input_nodes
    node.graph.erase_node(node)
    for source in sources:
        _erase_unread(source)


def measure_noise(actual: Any, expected: Any) -> float:
    """Return the noise of a value as a share of the signal, or infinity if it can't be compared.

    It is the sum of squares of the difference over that of the expected tensor.
    """
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
