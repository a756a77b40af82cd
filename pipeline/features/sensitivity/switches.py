"""A quantized program whose operators can be switched back to float, without calibrating again.

The quantizer says which values it rounds for which operator (its annotations, PT2E's). A value
stays rounded as long as its reader or its maker is quantized, which is what a quantizer does where
a config says `none` of one of them. Weights in float are those of the prepared program, into which
batch norms are folded. What follows is a close imitation of quantizing again; proposals are
verified by that.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e
from torchao.quantization.pt2e.quantizer import SharedQuantizationSpec

from pipeline.backends import make_quantizer
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import base_name

# A dequantized value by the name of its node, the name of its reader, and what the reader gets in
# float: the name of a node, or (True) of an attribute that holds a weight; then the operators that
# ask for the rounding.
Edge = tuple[str, str, str, bool, frozenset[str]]
_FLOAT_WEIGHT = "_float_weight_"


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

    def __init__(
        self,
        program: ExportedProgram,
        quantized: ExportedProgram,
        origins: Sequence[Mapping[str, int]],
        spec: Any,
    ) -> None:
        """Take a float program and what it was quantized to.

        Args:
            origins: the places of nodes of the quantized program in the float one, by name.
            spec: the quantizer and its options.
        """
        module = program.module(check_guards=False)
        self._prepared = prepare_pt2e(module, make_quantizer(spec))
        self._annotated = {
            node.name: node
            for node in self._prepared.graph.nodes
            if _is_annotated(node)
        }
        self._nodes = {node.name: node for node in self._prepared.graph.nodes}
        self._origins = _name_origins(program, origins[0])
        self._source = Source(quantized)
        self.module: GraphModule = self._source.module
        self.program = quantized
        self.keeps_state = bool(self._source.state)
        self.operators: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        for name, node in self._annotated.items():
            if self._find_leader(name) == name:
                self.operators[name] = innermost_module(node)
                self.kinds[name] = base_name(node)
        self.saved: dict[str, int] = {}
        self.edges = list(self._find_edges())
        graph = self.module.graph
        self._graph = copy.deepcopy(graph)

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

    def _find_leader(self, name: str) -> str | None:
        """Return the operator with which a node is quantized; None for one that isn't."""
        node = self._annotated.get(name)
        if node is None:
            return None
        specs = node.meta["quantization_annotation"].input_qspec_map.values()
        follows = all(isinstance(spec, SharedQuantizationSpec) for spec in specs)
        maker = self._find_maker(node)
        if follows and maker is not None:
            leader = self._find_leader(maker.name)
            return leader or name
        return name

    def _find_maker(self, node: Node) -> Node | None:
        """Return the operator whose value a node of the prepared program reads first."""
        for value in node.all_input_nodes:
            while value.op == "call_module" and value.all_input_nodes:
                value = value.all_input_nodes[0]
            if value.op == "call_function":
                return value
        return None

    def _find_edges(self) -> Iterator[Edge]:
        counted: set[str] = set()
        for node in self.module.graph.nodes:
            if not _is_call(node, "dequantize"):
                continue
            stored = node.args[0]
            assert isinstance(stored, Node)
            for reader in list(node.users):
                leader = self._find_leader(self._origins.get(reader.name, ""))
                if _is_call(stored, "quantize"):
                    yield from self._find_activation(node, stored, reader, leader)
                elif stored.op == "get_attr" and leader is not None:
                    yield from self._find_weight(node, stored, reader, leader, counted)

    def _find_activation(
        self, node: Node, stored: Node, reader: Node, leader: str | None
    ) -> Iterator[Edge]:
        """Yield the edge of an activation, which its reader rounds, its maker or both."""
        value = stored.args[0]
        assert isinstance(value, Node)
        operators = set() if leader is None else {leader}
        maker = self._origins.get(value.name, "")
        if _rounds_output(self._annotated.get(maker)):
            operators.add(str(self._find_leader(maker)))
        if operators:
            yield (node.name, reader.name, value.name, False, frozenset(operators))

    def _find_weight(
        self, node: Node, stored: Node, reader: Node, leader: str, counted: set[str]
    ) -> Iterator[Edge]:
        prepared = self._nodes[self._origins[reader.name]]
        place = reader.args.index(node)
        value = prepared.args[place]
        while (
            isinstance(value, Node) and value.op == "call_module" and value.args
        ):  # an observer
            value = value.args[0]
        if not isinstance(value, Node) or value.op != "get_attr":
            return
        weight = attrgetter(str(value.target))(self._prepared).detach()
        rounded = attrgetter(str(stored.target))(self.module)
        if weight.shape != rounded.shape:
            return
        if str(stored.target) not in counted:
            counted.add(str(stored.target))
            saved = self.saved.get(leader, 0)
            self.saved[leader] = saved + weight.nbytes - rounded.nbytes
        attribute = f"{_FLOAT_WEIGHT}{len(counted)}_{place}"
        self.module.register_buffer(attribute, weight)
        yield (node.name, reader.name, attribute, True, frozenset([leader]))


def _is_annotated(node: Node) -> bool:
    annotation = node.meta.get("quantization_annotation")
    is_call = node.op == "call_function"
    return is_call and annotation is not None and annotation._annotated


def is_rounding(node: Node) -> bool:
    """Tell whether a node rounds a value, or chooses how."""
    prefixes = ("quantize", "dequantize", "choose_qparams")
    return any(_is_call(node, prefix) for prefix in prefixes)


def _is_call(node: Node, prefix: str) -> bool:
    """Tell whether a node calls an operator whose name begins so."""
    return node.op == "call_function" and base_name(node).startswith(prefix)


def _rounds_output(node: Node | None) -> bool:
    return (
        node is not None
        and node.meta["quantization_annotation"].output_qspec is not None
    )


def _name_origins(
    program: ExportedProgram, origins: Mapping[str, int]
) -> dict[str, str]:
    """Return the name in a float program of each node of its quantized program."""
    names = [node.name for node in program.graph.nodes]
    return {name: names[place] for name, place in origins.items() if place < len(names)}


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
