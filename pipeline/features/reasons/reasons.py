"""Why operators are left to portable kernels, recorded in their nodes during partitioning.

Metadata follows a node from one partitioner to the next, and follows a value that a delegate reads
into the delegate; the keys of partitions leave these notes out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

from executorch.exir.backend.partitioner import Partitioner
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from pipeline.backends import Backend
from pipeline.program.graphs import control_flow_bodies
from pipeline.program.operators import NOTES, TAG, control_flow_name

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SET = re.compile(r"\{([^{}]*)\}")
# `<EdgeOpOverload: aten.add.Tensor>: schema = aten::add(Tensor self, ...) -> (Tensor)`
_OPERATOR = re.compile(
    r"<EdgeOpOverload: ([\w.]+)>: schema = [\w:.]+\((?:[^()]|\([^()]*\))*\) -> "
    r"(?:\([^()]*\)|[\w\[\]?]+(?:\([^()]*\))?)"
)
_FUNCTION = re.compile(r"<function (\w+)>")
_TRACE = "Traceback (most recent call last)"  # holds paths of the machine
_SYMBOL = re.compile(r"\b[su]\d+\b")
_NOT_LOOKED_AT = "it is in control flow, which its partitioner does not examine"


def record_reasons(
    backend: Backend | None, partitioner: Partitioner, program: ExportedProgram
) -> AbstractContextManager[dict[Node, str]]:
    """Return a context for one call of a partitioner that gathers why it leaves nodes."""
    if backend is None or backend.lowering.reasons is None:
        return nullcontext({})
    return backend.lowering.reasons(partitioner, program)


def note_reasons(
    backend: Backend | None,
    program: ExportedProgram,
    why: Mapping[Node, str],
    outside: Mapping[Node, str],
) -> None:
    """Record why a partitioner left nodes, in the nodes' metadata. `program` has its tags.

    Args:
        why: the partitioner's own reasons.
        outside: nodes that the config keeps from the partitioner, with the config's words.
    """
    if backend is None:
        name = ""
    else:
        name = backend.name
    if backend is None:
        looks_into = None
    else:
        looks_into = backend.lowering.control_flow
    for node, unseen in _iter_left(program.graph_module, looks_into):
        if outside.get(node):
            reason = outside[node]
        elif unseen:
            reason = _NOT_LOOKED_AT
        else:
            reason = _neutralize(why.get(node, ""), node)
        notes = node.meta.get(NOTES, ())
        if (name, reason) not in notes:
            node.meta[NOTES] = (*notes, (name, reason))


def _iter_left(
    module: GraphModule, looks_into: frozenset[str] | None, unseen: bool = False
) -> Iterator[tuple[Node, bool]]:
    """Yield the calls not taken by any partitioner, and whether the current one couldn't see them.

    Args:
        looks_into: the control flow whose bodies the partitioner sees; None if that is unknown.
    """
    for node in module.graph.nodes:
        if node.op == "call_function" and TAG not in node.meta:
            yield node, unseen
    for flow, bodies in control_flow_bodies(module).items():
        if TAG in flow.meta:
            continue
        hidden = looks_into is not None and control_flow_name(flow) not in looks_into
        for body in bodies:
            yield from _iter_left(body, looks_into, unseen or hidden)


def _neutralize(reason: str, node: Node) -> str:
    """Return a partitioner's reason, without parts that vary between equal programs or runs."""
    # These parts are the names of nodes, the numbers of symbols, addresses, and the order of sets.
    # Schemas, which are long, are left out as well.
    reason = _OPERATOR.sub(r"\1", reason.partition(_TRACE)[0])
    reason = _ADDRESS.sub("", reason)
    reason = _FUNCTION.sub(r"\1", reason)
    for named_node in (node, *node.all_input_nodes):
        if "_" not in named_node.name:  # an ordinary word too
            continue
        replacement = "it"
        if named_node is not node:
            replacement = getattr(named_node.target, "__name__", "an input")
        reason = re.sub(rf"\b{re.escape(named_node.name)}\b", replacement, reason)
    symbols: dict[str, str] = {}

    def number_symbol(match: re.Match[str]) -> str:
        return symbols.setdefault(match[0], f"s{len(symbols)}")

    reason = _SYMBOL.sub(number_symbol, reason)
    reason = _SET.sub(_sort_set, reason)
    return " ".join(reason.split()).rstrip(".")


def _sort_set(match: re.Match[str]) -> str:
    elements = sorted(match[1].split(", "))
    return f"{{{', '.join(elements)}}}"
