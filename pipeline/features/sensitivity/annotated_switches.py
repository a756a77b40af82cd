"""Switches of a program that was quantized by one of PT2E's quantizers.

The quantizer says which values it rounds for which operator (its annotations). A value stays
rounded as long as its reader or its maker is quantized, just as a quantizer does if a config says
`none` for one of them. Float weights are those of the prepared program, with batch norms folded in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e
from torchao.quantization.pt2e.quantizer import SharedQuantizationSpec

from pipeline.backends import make_quantizer
from pipeline.features.sensitivity.switches import (
    FLOAT_WEIGHT,
    Edge,
    QuantizationSwitches,
    is_call,
    name_origins,
)
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import base_name


class AnnotatedSwitches(QuantizationSwitches):
    """Switches of the operators that a quantizer annotated."""

    def __init__(
        self,
        program: ExportedProgram,
        quantized: ExportedProgram,
        origins: Sequence[Mapping[str, int]],
        spec: Any,
    ) -> None:
        """Find the switches between a float program and its quantized version.

        Args:
            origins: places in the float program of the quantized program's nodes, by name.
            spec: the quantizer and its options.
        """
        super().__init__(quantized)
        module = program.module(check_guards=False)
        self._prepared = prepare_pt2e(module, make_quantizer(spec))
        self._annotated = {
            node.name: node
            for node in self._prepared.graph.nodes
            if _is_annotated(node)
        }
        self._nodes = {node.name: node for node in self._prepared.graph.nodes}
        self._origins = name_origins(program, origins[0])
        for name, node in self._annotated.items():
            if self._find_leader(name) == name:
                self.operators[name] = innermost_module(node)
                self.kinds[name] = base_name(node)
        self.edges = list(self._find_edges())
        self.freeze()

    def _find_leader(self, name: str) -> str | None:
        """Return the operator that a node is quantized with, or None if it isn't quantized."""
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
            if not is_call(node, "dequantize"):
                continue
            stored = node.args[0]
            assert isinstance(stored, Node)
            for reader in list(node.users):
                leader = self._find_leader(self._origins.get(reader.name, ""))
                if is_call(stored, "quantize"):
                    yield from self._find_activation(node, stored, reader, leader)
                elif stored.op == "get_attr" and leader is not None:
                    yield from self._find_weight(node, stored, reader, leader, counted)

    def _find_activation(
        self, node: Node, stored: Node, reader: Node, leader: str | None
    ) -> Iterator[Edge]:
        """Yield the edge of an activation that its reader rounds, its maker, or both."""
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
        attribute = f"{FLOAT_WEIGHT}{len(counted)}_{place}"
        self.module.register_buffer(attribute, weight)
        yield (node.name, reader.name, attribute, True, frozenset([leader]))


def _is_annotated(node: Node) -> bool:
    annotation = node.meta.get("quantization_annotation")
    is_call = node.op == "call_function"
    return is_call and annotation is not None and annotation._annotated


def _rounds_output(node: Node | None) -> bool:
    return (
        node is not None
        and node.meta["quantization_annotation"].output_qspec is not None
    )
