"""Switches of a program that torchao's `quantize_` quantized, or another quantizer that annotates
nothing.

Every operator that reads a dequantized value is quantized on its own, and so is the lookup of an
embedding. Weights in float are those of the float program.
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
_INDICES = 5  # the argument of a lookup


class WeightSwitches(QuantizationSwitches):
    """Switches of the operators that read dequantized values."""

    def __init__(
        self,
        program: ExportedProgram,
        quantized: ExportedProgram,
        origins: Sequence[Mapping[str, int]],
        bits: int = 8,
    ) -> None:
        """Take a float program and what it was quantized to.

        Args:
            origins: the places of nodes of the quantized program in the float one, by name.
            bits: of a weight, of which a package stores two in a byte where they are 4.
        """
        super().__init__(quantized)
        self._float = program.module(check_guards=False)
        self._nodes = {node.name: node for node in self._float.graph.nodes}
        self._origins = name_origins(program, origins[0])
        self._bits = bits
        self._weights: dict[str, str] = {}
        for node in list(self.module.graph.nodes):
            if is_call(node, "dequantize"):
                self.edges += self._find_edges(node)
            elif base_name(node) in _LOOKUPS:
                self.edges += self._find_lookup(node)
        self.freeze()

    def _find_edges(self, node: Node) -> Iterator[Edge]:
        stored = node.args[0]
        assert isinstance(stored, Node)
        for reader in list(node.users):
            origin = self._add_operator(reader)
            if origin is None:
                continue
            operators = frozenset([reader.name])
            if is_call(stored, "quantize"):
                value = stored.args[0]
                assert isinstance(value, Node)
                yield (node.name, reader.name, value.name, False, operators)
                continue
            weight = self._find_weight(origin, reader.args.index(node))
            if weight is not None and stored.op == "get_attr":
                attribute = self._keep(
                    reader.name, str(stored.target), weight, self._bits
                )
                yield (node.name, reader.name, attribute, True, operators)

    def _find_lookup(self, node: Node) -> Iterator[Edge]:
        """Yield the edge of an embedding, next to which its float table is looked up. All readers
        get an alias of it, so that they get the float rows where they are in float too."""
        origin = self._add_operator(node)
        table = None if origin is None else self._find_weight(origin, 0)
        if table is None:
            return
        stored = node.args[0]
        assert isinstance(stored, Node)
        attribute = self._keep(node.name, str(stored.target), table, 8)
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
        """Note a quantized operator, and return it as it is in the float program; None for what is
        in none."""
        origin = self._nodes.get(self._origins.get(node.name, ""))
        if origin is None or origin.op != "call_function":
            return None
        self.operators[node.name] = innermost_module(origin)
        self.kinds[node.name] = base_name(origin)
        return origin

    def _find_weight(self, operator: Node, place: int) -> torch.Tensor | None:
        value = operator.args[place]
        if not isinstance(value, Node) or value.op != "get_attr":
            return None
        weight: Any = attrgetter(str(value.target))(self._float)
        return weight.detach()  # type: ignore[no-any-return]

    def _keep(self, operator: str, target: str, weight: torch.Tensor, bits: int) -> str:
        """Return the attribute of the module that holds a weight in float.

        Args:
            bits: in a package, of each byte of the rounded weight here.
        """
        if target not in self._weights:
            rounded = attrgetter(target)(self.module)
            size = rounded.nbytes * bits // 8
            self.saved[operator] = self.saved.get(operator, 0) + weight.nbytes - size
            self._weights[target] = f"{FLOAT_WEIGHT}{len(self._weights)}"
            self.module.register_buffer(self._weights[target], weight)
        return self._weights[target]
