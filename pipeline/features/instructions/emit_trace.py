"""Records which instructions of an emitted method each node of its source program became.

The debug handle maps of ExecuTorch's emitter leave out control flow, and instructions of a node
without a handle. So it is watched while it works: how many instructions there are before and after
each node. Nothing that it emits is changed. Nodes are named by their places (program/graphs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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

_CHAIN = 0  # a plan has one, into which the emitter merges those of control flow


@dataclass
class _Method:
    """The nodes of one method that the emitter has gone through."""

    name: str
    program: ExportedProgram
    nodes: list[tuple[int, int, Node]] = field(default_factory=list)  # from, to, node
    values: dict[str, int] = field(default_factory=dict)  # of placeholders, by name


class Emission:
    """Everything that was emitted within `record_emission`."""

    def __init__(self) -> None:
        self.methods: dict[str, _Method] = {}

    def instructions(self, method: str, source: ExportedProgram) -> Instructions:
        """Return the instructions of a method that was lowered from `source` in this process."""
        if method not in self.methods:
            return Instructions()
        emitted = self.methods[method]
        places = NodePlaces(source)
        nodes: list[tuple[int, int, int]] = []
        delegates: list[DelegateNodes] = []
        for start, end, node in emitted.nodes:
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
            tuple(sorted(_find_state(emitted))),
        )

    def delegates(self, method: str) -> list[LoweredBackendModule]:
        """Return the delegates that a method calls, in the order of its instructions."""
        if method not in self.methods:
            return []
        delegates = []
        for _, _, node in sorted(
            self.methods[method].nodes, key=lambda entry: entry[1]
        ):
            delegate = called_delegate(node)
            if delegate is not None:
                delegates.append(delegate)
        return delegates


@contextmanager
def record_emission() -> Iterator[Emission]:
    """Record everything that this process emits within it."""
    emission = Emission()
    # By the emitter's state, which those of control flow share. The states are kept: the id of one
    # that is gone may be that of the next method's.
    methods_by_state: dict[int, tuple[Any, _Method]] = {}

    def recorded(run_node: Callable[[Any, Node], Any], emitter: Any, node: Node) -> Any:
        state = emitter.emitter_state
        # Bodies of control flow have emitters of their own, with the state of the outermost.
        is_outermost = isinstance(emitter, _emitter._TopLevelEmitter)
        if is_outermost and id(state) not in methods_by_state:
            method = _Method(emitter.name, emitter.exported_program)
            methods_by_state[id(state)] = (state, method)
            emission.methods[emitter.name] = method
        _, method = methods_by_state[id(state)]
        start = len(emitter.chain.instructions)
        value = run_node(emitter, node)
        end = len(emitter.chain.instructions)
        if node.op == "placeholder" and is_outermost:
            method.values[node.name] = value.id
        elif node.op == "call_function" and end > start and _emits_for_itself(node):
            offset = emitter.instruction_start_offset
            method.nodes.append((offset + start, offset + end, node))
        return value

    with wrapped(_emitter._Emitter, "run_node", recorded):
        yield emission


def _emits_for_itself(node: Node) -> bool:
    """Return whether a node's instructions are its own; bodies of control flow emit theirs."""
    return called_delegate(node) is not None or not control_flow_name(node)


def _trace_delegate(
    index: int, module: LoweredBackendModule, places: NodePlaces
) -> DelegateNodes:
    inside = module.original_module
    last: dict[
        int, Node
    ] = {}  # of several nodes that one became, the last gives its value
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


def _find_state(method: _Method) -> Iterator[tuple[str, int]]:
    signature = method.program.graph_signature
    changed = set(signature.buffers_to_mutate.values())
    for name, target in signature.inputs_to_buffers.items():
        if target in changed and name in method.values:
            yield target, method.values[name]
