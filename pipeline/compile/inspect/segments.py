"""A lowered method as a row of stretches: each delegate, and what is left between delegates."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from executorch.exir.graph_module import get_control_flow_submodules
from executorch.exir.lowered_backend_module import get_lowered_submodules
from executorch.exir.memory import alloc
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node


@dataclass(frozen=True)
class Stretch:
    """Calls of operators in a row, by name: of one delegate, of kernels of one backend, or, where
    `backend` is None, of portable kernels."""

    backend: str | None
    operators: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "nodes": sum(self.operators.values()),
            "operators": dict(sorted(self.operators.items())),
        }


def stretches(
    program: ExportedProgram, namespaces: Mapping[str, str] | None = None
) -> list[Stretch]:
    """In the order of the graph; the bodies of control flow stand where it is called. All nodes
    that `count_delegation` counts are in one of them, once.

    Args:
        namespaces: of operators that are a backend's own kernels, each with the backend's id.
    """
    found: list[Stretch] = []
    open_: tuple[str | None, Counter[str]] | None = None  # calls that further ones may join

    def close() -> None:
        nonlocal open_
        if open_ is not None:
            found.append(Stretch(open_[0], dict(open_[1])))
        open_ = None

    for name, delegate in _calls(program.graph_module):
        if delegate is not None:
            close()
            inside = _calls(delegate.original_module.graph_module)
            found.append(Stretch(delegate.backend_id, dict(Counter(each for each, _ in inside))))
            continue
        owner = (namespaces or {}).get(name.partition(".")[0])
        if open_ is None or open_[0] != owner:
            close()
            open_ = owner, Counter()
        open_[1][name] += 1
    close()
    return found


def _calls(module: GraphModule) -> Iterator[tuple[str, Any]]:
    """Of a graph and of its control flow: the names of operators that are called, and delegates,
    whose name is empty."""
    delegates = {id(node): lowered for _, lowered, node in get_lowered_submodules(module)}
    bodies: dict[int, list[GraphModule]] = {}
    for _, body, node in get_control_flow_submodules(module):
        bodies.setdefault(id(node), []).append(body)
    for node in module.graph.nodes:
        if id(node) in delegates:
            yield "", delegates[id(node)]
        elif id(node) in bodies:
            for body in bodies[id(node)]:
                yield from _calls(body)
        elif name := _operator(node):
            yield name, None


def _operator(node: Node) -> str:
    """As `aten.linear.default`; empty for what is no call of one, or moves no data."""
    target: Any = node.target
    moves = target in (operator.getitem, alloc) or isinstance(target, HigherOrderOperator)
    if node.op != "call_function" or moves:
        return ""
    return target.name().replace("::", ".") if hasattr(target, "name") else target.__name__
