"""Records which instructions of an emitted method each node of its source program produced.

The debug handle maps of ExecuTorch's emitter leave out control flow and the instructions of nodes
without a handle. This module therefore observes the emitter: it counts the instructions before and
after each node, and changes nothing that is emitted. Nodes are identified by their places
(program/graphs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from executorch.exir.emit import _emitter
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from pipeline.program.graphs import NodePlaces, called_delegate, iter_nodes
from pipeline.program.operators import control_flow_name
from pipeline.program.patching import wrapped
from pipeline.store.compiled import DelegateNodes, Instructions

_CHAIN = 0  # a plan's only chain: the emitter merges control flow's chains into it


class Emission:
    """Everything that is emitted within `record_emission`.

    Attributes:
        programs: by method, the program that was emitted.
        nodes: by method, each node that produced instructions, preceded by the range of those
            instructions: the first one and the one after the last.
        values: by method, the index of each placeholder's value, by the placeholder's name.
    """

    def __init__(self) -> None:
        self.programs: dict[str, ExportedProgram] = {}
        self.nodes: dict[str, list[tuple[int, int, Node]]] = {}
        self.values: dict[str, dict[str, int]] = {}

    def instructions(self, method: str, source: ExportedProgram) -> Instructions:
        """Return the instructions of a method that was lowered from `source` in this process."""
        if method not in self.programs:
            return Instructions()
        places = NodePlaces(source)
        nodes: list[tuple[int, int, int]] = []
        delegates: list[DelegateNodes] = []
        for start, end, node in self.nodes[method]:
            delegate = called_delegate(node)
            if delegate is not None:
                delegates.append(_trace_delegate(end - 1, delegate, places))
                continue
            place = places.find(node)
            if place is not None:
                nodes += [(_CHAIN, index, place) for index in range(start, end)]
        return Instructions(
            tuple(sorted(nodes)),
            tuple(sorted(delegates, key=lambda delegate: delegate.index)),
            tuple(sorted(self._find_state(method))),
        )

    def _find_state(self, method: str) -> Iterator[tuple[str, int]]:
        """Yield the name and the value index of each buffer that a method changes."""
        signature = self.programs[method].graph_signature
        changed = set(signature.buffers_to_mutate.values())
        values = self.values[method]
        for name, target in signature.inputs_to_buffers.items():
            if target in changed and name in values:
                yield target, values[name]

    def delegates(self, method: str) -> list[LoweredBackendModule]:
        """Return the delegates that a method calls, in the order of its instructions."""
        delegates = []
        emitted_nodes = self.nodes.get(method, ())
        for _, _, node in sorted(emitted_nodes, key=lambda entry: entry[1]):
            delegate = called_delegate(node)
            if delegate is not None:
                delegates.append(delegate)
        return delegates


@contextmanager
def record_emission() -> Iterator[Emission]:
    """Record everything that this process emits inside the context."""
    emission = Emission()
    # Keyed by the id of the emitter's state, which emitters of control flow share. The state is
    # kept alive so that the next method's state can't reuse its id.
    methods_by_state: dict[int, tuple[Any, str]] = {}

    def recorded(run_node: Callable[[Any, Node], Any], emitter: Any, node: Node) -> Any:
        state = emitter.emitter_state
        # Each body of control flow has an emitter with the state of the outermost one.
        is_outermost = isinstance(emitter, _emitter._TopLevelEmitter)
        if is_outermost and id(state) not in methods_by_state:
            methods_by_state[id(state)] = (state, emitter.name)
            emission.programs[emitter.name] = emitter.exported_program
            emission.nodes[emitter.name] = []
            emission.values[emitter.name] = {}
        _, method = methods_by_state[id(state)]
        start = len(emitter.chain.instructions)
        value = run_node(emitter, node)
        end = len(emitter.chain.instructions)
        if node.op == "placeholder" and is_outermost:
            emission.values[method][node.name] = value.id
        elif node.op == "call_function" and end > start and _emits_for_itself(node):
            offset = emitter.instruction_start_offset
            span = (offset + start, offset + end, node)
            emission.nodes[method].append(span)
        return value

    with wrapped(_emitter._Emitter, "run_node", recorded):
        yield emission


def _emits_for_itself(node: Node) -> bool:
    """Return whether a node's instructions are its own; control flow's come from its bodies."""
    return called_delegate(node) is not None or not control_flow_name(node)


def _trace_delegate(
    index: int, module: LoweredBackendModule, places: NodePlaces
) -> DelegateNodes:
    inside = module.original_module
    last: dict[int, Node] = {}  # the last node at a place gives the value
    for node in iter_nodes(inside):
        if node.op != "call_function":
            continue
        place = places.find(node)
        if place is not None:
            last[place] = node
    place_of_node: dict[Any, int] = {node: place for place, node in last.items()}
    results = pytree.tree_leaves(inside.graph.output_node().args)
    outputs = tuple(place_of_node.get(result) for result in results)
    return DelegateNodes(index, tuple(sorted(last)), outputs)
