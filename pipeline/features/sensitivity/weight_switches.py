"""Switches of a program quantized by torchao's `quantize_`, or a quantizer that annotates nothing.

Every operator that reads a dequantized value is quantized separately, and so is the lookup of an
embedding. Float weights are those of the float program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.features.sensitivity.switches import (
    FLOAT_WEIGHT,
    Edge,
    QuantizationSwitches,
    is_call,
    name_origins,
)
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import base_name

_LOOKUPS = ("embedding_byte", "embedding_4bit")
_INDICES = 5  # the place of a lookup's indices among its arguments


class WeightSwitches(QuantizationSwitches):
    """Switches of the operators that read dequantized values."""

    def __init__(
        self,
        program: ExportedProgram,
        quantized: ExportedProgram,
        origins: Sequence[Mapping[str, int]],
        bits: int = 8,
        kinds: frozenset[str] | None = None,
    ) -> None:
        """Find the switches between a float program and its quantized version.

        Args:
            origins: places in the float program of the quantized program's nodes, by name.
            bits: bits of a weight; a package stores two 4-bit weights in a byte.
            kinds: the operators that the quantizer rounds values for, such as `conv2d`; operators
                that pass a value on to them, such as `flatten`, count with them. None or empty for
                any.
        """
        super().__init__(quantized)
        self._float = program.module(check_guards=False)
        self._nodes = {node.name: node for node in self._float.graph.nodes}
        self._origins = name_origins(program, origins[0])
        self._bits = bits
        self._kinds = kinds
        self._weights: dict[str, str] = {}
        for node in list(self.module.graph.nodes):
            if is_call(node, "dequantize"):
                self.edges += self._find_edges(node)
            elif base_name(node) in _LOOKUPS:
                self.edges += self._find_lookup(node)
        self.edges += list(self._find_changed_constants())
        self.freeze()

    def _find_edges(self, node: Node) -> Iterator[Edge]:
        stored = node.args[0]
        assert isinstance(stored, Node)
        for reader in list(node.users):
            origin = self._find_origin(reader)
            if origin is None:
                continue
            operators = self._find_operators(reader)
            weight = self._find_weight(origin, reader.args.index(node))
            if is_call(stored, "quantize"):
                value = stored.args[0]
                assert isinstance(value, Node)
                if weight is not None:  # NNCF's, rounded when the backend lowers
                    self._keep(reader.name, value.name, weight, weight.numel())
                yield (node.name, reader.name, value.name, False, operators)
            elif weight is not None and stored.op == "get_attr":
                size = self._read(stored).nbytes * self._bits // 8
                attribute = self._keep(reader.name, str(stored.target), weight, size)
                yield (node.name, reader.name, attribute, True, operators)

    def _find_operators(self, reader: Node) -> frozenset[str]:
        """Record the operators for which a node's input is rounded, and return their names.

        They are the node itself, or the operators that it passes the value on to.
        """
        names: set[str] = set()
        waiting = [reader]
        while waiting:
            node = waiting.pop()
            origin = self._find_origin(node)
            if origin is None:
                continue
            if not self._kinds or base_name(origin) in self._kinds:
                self._add_operator(node)
                names.add(node.name)
            else:
                waiting += node.users
        if not names:
            self._add_operator(reader)
            names.add(reader.name)
        return frozenset(names)

    def _find_changed_constants(self) -> Iterator[Edge]:
        """Yield the edges of constants that the quantizer changed without a dequantizing operator.

        These are a bias that makes up for the mean error of rounding, and a weight that arithmetic
        unpacks, as in NNCF's weight-only modes.
        """
        rounded = {edge[:2] for edge in self.edges}
        for node in list(self.module.graph.nodes):
            origin = self._find_origin(node)
            if origin is None or origin.target is not node.target:
                continue
            for place, value in enumerate(node.args):
                constant = self._find_weight(origin, place)
                if constant is None or not isinstance(value, Node):
                    continue
                stored = [self._read(attribute) for attribute in _find_stored(value)]
                if (value.name, node.name) in rounded or not stored:
                    continue
                if value.op == "get_attr" and _is_same(stored[0], constant):
                    continue
                self._add_operator(node)
                size = sum(part.nbytes for part in stored)
                attribute = self._keep(node.name, value.name, constant, size)
                operators = frozenset([node.name])
                yield (value.name, node.name, attribute, True, operators)

    def _find_lookup(self, node: Node) -> Iterator[Edge]:
        """Yield the edge of an embedding, and add a lookup of its float table next to it.

        All readers get an alias of the embedding, so that they also get the float rows when they
        are in float.
        """
        origin = self._add_operator(node)
        table = None if origin is None else self._find_weight(origin, 0)
        if table is None:
            return
        stored = node.args[0]
        assert isinstance(stored, Node)
        size = self._read(stored).nbytes
        attribute = self._keep(node.name, str(stored.target), table, size)
        graph = self.module.graph
        with graph.inserting_before(node):
            rows = graph.get_attr(attribute)
            operator = torch.ops.aten.embedding.default
            lookup = graph.call_function(operator, (rows, node.args[_INDICES]))
        with graph.inserting_after(node):
            alias = graph.call_function(torch.ops.aten.alias.default, (node,))
        node.replace_all_uses_with(alias, delete_user_cb=lambda user: user is not alias)
        yield (node.name, alias.name, lookup.name, False, frozenset([node.name]))

    def _add_operator(self, node: Node) -> Node | None:
        """Record a quantized operator, and return its node in the float program.

        Returns None if the float program has no such operator.
        """
        origin = self._find_origin(node)
        if origin is not None:
            self.operators[node.name] = innermost_module(origin)
            self.kinds[node.name] = base_name(origin)
        return origin

    def _find_origin(self, node: Node) -> Node | None:
        """Return the operator of the float program that a node comes from, or None."""
        origin = self._nodes.get(self._origins.get(node.name, ""))
        return None if origin is None or origin.op != "call_function" else origin

    def _find_weight(self, operator: Node, place: int) -> torch.Tensor | None:
        value = operator.args[place]
        if not isinstance(value, Node) or value.op != "get_attr":
            return None
        weight: Any = attrgetter(str(value.target))(self._float)
        return weight.detach()  # type: ignore[no-any-return]

    def _read(self, attribute: Node) -> torch.Tensor:
        """Return the constant of the quantized program that a node reads."""
        constant: Any = attrgetter(str(attribute.target))(self.module)
        return constant.detach()  # type: ignore[no-any-return]

    def _keep(self, operator: str, name: str, weight: torch.Tensor, size: int) -> str:
        """Return the attribute of the module that holds a weight in float.

        Args:
            name: name of the quantized program's value that stands in for the weight.
            size: bytes of that value in a package.
        """
        if name not in self._weights:
            self.saved[operator] = self.saved.get(operator, 0) + weight.nbytes - size
            self._weights[name] = f"{FLOAT_WEIGHT}{len(self._weights)}"
            self.module.register_buffer(self._weights[name], weight)
        return self._weights[name]


def _find_stored(node: Node) -> list[Node]:
    """Return the constants that a value is computed from, or an empty list if inputs take part."""
    stored: dict[Node, None] = {}
    waiting = [node]
    while waiting:
        value = waiting.pop()
        if value.op == "get_attr":
            stored[value] = None
        elif value.op != "call_function":
            return []
        waiting += value.all_input_nodes
    return [*stored]


def _is_same(constant: torch.Tensor, other: torch.Tensor) -> bool:
    return constant.dtype == other.dtype and torch.equal(constant, other)
