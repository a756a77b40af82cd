"""Runs a source program node by node, including control flow, and keeps the nodes' values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from pipeline.program.eager import Source
from pipeline.program.graphs import NodePlaces, iter_nodes
from pipeline.validate.budget import Budget

# Limits on the bytes of kept values and on the visits of a loop body; values beyond them are not
# compared.
MOST_BYTES = 1 << 30
MOST_VISITS = 32


class NodeValues(Source):
    """A source program that keeps the values of its nodes.

    Attributes:
        values: by place (`graphs.iter_nodes`), the values of a node in the last call, one for each
            time that it ran.
        left_out: places whose values were too large to keep.
        budget: the time that calls may take.
    """

    def __init__(
        self, program: ExportedProgram, common: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        super().__init__(program, common)
        self.nodes = list(iter_nodes(program))
        self.values: dict[int, list[Any]] = {}
        self.left_out: set[int] = set()
        # The module has a copy of the program's graph, but shares the bodies of its control flow.
        places = NodePlaces(program)
        copied = self.module.graph.nodes
        self._places = {node: place for place, node in enumerate(self.nodes)}
        self._places |= {
            n: place for n in copied if (place := places.find(n)) is not None
        }
        self._wanted: Collection[int] | None = None
        self._bytes = 0
        self.budget = Budget()

    def call(
        self, inputs: Sequence[Any], places: Collection[int] | None = None
    ) -> list[Any]:
        """Make one call on flat inputs, and return the flat outputs in the order of the runtime.

        May raise OutOfTimeError after any node.

        Args:
            places: the places whose values to keep; all by default.
        """
        self.values, self.left_out, self._wanted, self._bytes = {}, set(), places, 0
        return self.run_flat(inputs)

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the current values of the buffers that the program changes, by qualified name."""
        return dict(zip(self.state, self._state, strict=True))

    def _call_module(self, leaves: list[Any]) -> list[Any]:
        walker = Walker(self.module, self._keep)
        return pytree.tree_leaves(walker.run(*leaves, enable_io_processing=False))

    def _keep(self, node: Node, value: Any) -> None:
        self.budget.check()
        place = self._places.get(node)
        if place is None:
            return
        if self._wanted is not None and place not in self._wanted:
            return
        size = 0
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                size += leaf.nbytes
        visits = self.values.setdefault(place, [])
        if len(visits) >= MOST_VISITS or self._bytes + size > MOST_BYTES:
            self.left_out.add(place)
            return
        self._bytes += size
        # Copied, since later nodes may write to this memory.
        visits.append(pytree.tree_map_only(torch.Tensor, _copy, value))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


class Walker(Interpreter):
    """Runs a graph once, and passes the value of each node except the output to a callback."""

    def __init__(self, module: GraphModule, keep: Callable[[Node, Any], None]) -> None:
        super().__init__(module)
        self._keep = keep

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n.op != "output":
            self._keep(n, value)
        return value

    def get_attr(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return a body of control flow as a function whose nodes are passed on as well."""
        value = super().get_attr(target, args, kwargs)
        if isinstance(value, GraphModule):
            return type(self)(value, self._keep).run
        return value
