"""Which instruction of an emitted method gives which node of its source program.

ExecuTorch's emitter knows it and forgets it: its debug handle maps leave out control flow, and an
instruction that it makes of a node without a handle. Here it is asked while it works: of every node
that it goes through, how many instructions there were before and after, and in which value of the
plan the result lies. Nothing of what it emits is changed.

A node is named by its place among `delegation.nodes_of(program)`: a place holds for every export of
the same program, where a name or a line doesn't.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.emit import _emitter
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from pipeline.compile.inspect.delegation import Places, nodes_of

_CHAIN = 0  # a plan has one, into which the emitter merges those of control flow


@dataclass(frozen=True)
class DelegateNodes:
    """A delegate call. `places` are those of the nodes that it runs, sorted; `outputs` those of the
    nodes whose values it gives, in the order of its outputs, None where lowering made one."""

    index: int
    places: tuple[int, ...]
    outputs: tuple[int | None, ...]

    def to_json(self) -> dict[str, Any]:
        return {"index": self.index, "places": list(self.places), "outputs": list(self.outputs)}


@dataclass(frozen=True)
class Instructions:
    """Of one method.

    Attributes:
        nodes: (index of an instruction, place of the node that it is part of). A node may become
            several instructions, the last of which gives its value.
        delegates: the delegate calls, in the order of the instructions.
        state: (qualified name of a buffer that the method changes, the value of the plan in which
            it lies).
    """

    nodes: tuple[tuple[int, int], ...] = ()
    delegates: tuple[DelegateNodes, ...] = ()
    state: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "nodes": [[_CHAIN, index, place] for index, place in self.nodes],
            "delegates": [delegate.to_json() for delegate in self.delegates],
            "state": [[name, value] for name, value in self.state],
        }

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Instructions:
        return cls(
            tuple((index, place) for _, index, place in data["nodes"]),
            tuple(
                DelegateNodes(d["index"], tuple(d["places"]), tuple(d["outputs"]))
                for d in data["delegates"]
            ),
            tuple((name, value) for name, value in data["state"]),
        )


@dataclass
class _Method:
    """What the emitter made of one method, as it went along."""

    name: str
    program: ExportedProgram
    nodes: list[tuple[int, int, Node]] = field(default_factory=list)  # from, to, node
    values: dict[Node, int] = field(default_factory=dict)  # of placeholders


@dataclass
class Emission:
    """What `recording` collects."""

    methods: dict[str, _Method] = field(default_factory=dict)

    def instructions(self, method: str, source: ExportedProgram) -> Instructions:
        """Of a method, whose program was lowered from `source` in this process."""
        if method not in self.methods:
            return Instructions()
        made, places = self.methods[method], Places(source)
        nodes: list[tuple[int, int]] = []
        delegates: list[DelegateNodes] = []
        for start, end, node in made.nodes:
            if node.target is executorch_call_delegate:
                delegates.append(_delegate(end - 1, _module(node), places))
                continue
            place = places.of(node)
            if place is not None:
                nodes += [(index, place) for index in range(start, end)]
        return Instructions(
            tuple(sorted(nodes)),
            tuple(sorted(delegates, key=lambda delegate: delegate.index)),
            tuple(sorted(_state(made))),
        )

    def delegates(self, method: str) -> list[tuple[int, LoweredBackendModule]]:
        """The delegate calls of a method by their instructions, as they were lowered."""
        calls = self.methods[method].nodes if method in self.methods else ()
        own = [(end - 1, _module(n)) for _, end, n in calls if n.target is executorch_call_delegate]
        return sorted(own, key=lambda pair: pair[0])


@contextmanager
def recording() -> Iterator[Emission]:
    """Of everything that this process emits meanwhile."""
    emission = Emission()
    found: dict[int, _Method] = {}  # by the emitter's state, which those of control flow share
    run_node = _emitter._Emitter.run_node

    def recorded(emitter: Any, node: Node) -> Any:
        state = emitter.emitter_state
        if isinstance(emitter, _emitter._TopLevelEmitter) and id(state) not in found:
            found[id(state)] = _Method(emitter.name, emitter.exported_program)
            emission.methods[emitter.name] = found[id(state)]
        method = found[id(state)]
        start = len(emitter.chain.instructions)
        value = run_node(emitter, node)
        offset, end = emitter.instruction_start_offset, len(emitter.chain.instructions)
        if node.op == "placeholder" and isinstance(emitter, _emitter._TopLevelEmitter):
            method.values[node] = value.id
        elif node.op == "call_function" and end > start and not _is_control_flow(node):
            method.nodes.append((offset + start, offset + end, node))
        return value

    _emitter._Emitter.run_node = recorded
    try:
        yield emission
    finally:
        _emitter._Emitter.run_node = run_node


def _is_control_flow(node: Node) -> bool:
    """Whose body has emitters of its own."""
    return node.target is not executorch_call_delegate and isinstance(
        node.target, torch._ops.HigherOrderOperator
    )


def _module(call: Node) -> LoweredBackendModule:
    name = call.args[0]
    assert isinstance(name, Node)
    owner = call.graph.owning_module
    module = getattr(owner, str(name.target))
    assert isinstance(module, LoweredBackendModule)
    return module


def _delegate(index: int, module: LoweredBackendModule, places: Places) -> DelegateNodes:
    inside = module.original_module
    last: dict[int, Node] = {}  # of several nodes that one became, the last gives its value
    for node in nodes_of(inside):
        place = places.of(node) if node.op == "call_function" else None
        if place is not None:
            last[place] = node
    given = {node: place for place, node in last.items()}
    (results,) = inside.graph.output_node().args
    outputs = [
        given.get(node) if isinstance(node, Node) else None for node in pytree.tree_leaves(results)
    ]
    return DelegateNodes(index, tuple(sorted(last)), tuple(outputs))


def _state(method: _Method) -> Iterator[tuple[str, int]]:
    signature = method.program.graph_signature
    changed = set(signature.buffers_to_mutate.values())
    for spec in signature.input_specs:
        if spec.kind is InputKind.BUFFER and spec.target in changed:
            for node, value in method.values.items():
                if node.name == getattr(spec.arg, "name", None):
                    yield str(spec.target), value
