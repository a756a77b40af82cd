"""Why operators are left to portable kernels, noted in their nodes as they are partitioned.

Metadata goes with a node from one partitioner to the next, and with a value that a delegate reads
into the delegate; the keys of partitions leave notes out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.graph_module import get_control_flow_submodules
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from pipeline.backends import Backend
from pipeline.program.operators import NOTES

_TAG = "delegation_tag"
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
_NOT_LOOKED_AT = "it stands in control flow, which its partitioner does not look into"


def listening(
    backend: Backend | None, partitioner: Partitioner, program: ExportedProgram
) -> AbstractContextManager[dict[Node, str]]:
    """A context for one call of a partitioner, with why it leaves nodes."""
    if backend is None or backend.reasons is None:
        return nullcontext({})
    return backend.reasons(partitioner, program)


def note(
    backend: Backend | None,
    program: ExportedProgram,
    why: Mapping[Node, str],
    outside: Mapping[Node, str],
) -> None:
    """Notes why a partitioner, of which `program` has the tags, left nodes.

    Args:
        why: reasons of the partitioner's own.
        outside: nodes that the config keeps from it, with what it says.
    """
    name = "" if backend is None else backend.name
    for node, unseen in _left(program.graph_module, _unseen_by(backend)):
        reason = outside.get(node) or (unseen and _NOT_LOOKED_AT) or _told(why.get(node, ""), node)
        given = node.meta.get(NOTES, ())
        if (name, reason) not in given:
            node.meta[NOTES] = (*given, (name, reason))


def reason_of(node: Node) -> str:
    """What was noted: one partitioner's reason, or those of several, each with its name."""
    notes = node.meta.get(NOTES, ())
    if len({name for name, _ in notes}) < 2:
        return "; ".join(reason for _, reason in notes if reason)
    return "; ".join(f"{name}: {reason}" for name, reason in notes if reason)


def _unseen_by(backend: Backend | None) -> frozenset[str] | None:
    """The control flow whose bodies its partitioner looks into; None where nothing is known."""
    return None if backend is None else backend.looks_into


def _left(
    module: GraphModule, looks_into: frozenset[str] | None, unseen: bool = False
) -> Iterator[tuple[Node, bool]]:
    """The calls that no partitioner took yet, each with whether it could not be seen."""
    for node in module.graph.nodes:
        if node.op == "call_function" and _TAG not in node.meta:
            yield node, unseen
    for _, body, flow in get_control_flow_submodules(module):
        if _TAG not in flow.meta:
            hidden = looks_into is not None and flow.target.name() not in looks_into  # type: ignore[union-attr]
            yield from _left(body, looks_into, unseen or hidden)


def _told(reason: str, node: Node) -> str:
    """A partitioner's words, without what changes between equal programs or processes: names of
    nodes, the numbers of symbols, addresses, the order of sets; and without schemas, which are
    long."""
    reason = _OPERATOR.sub(r"\1", reason.partition(_TRACE)[0])
    reason = _FUNCTION.sub(r"\1", _ADDRESS.sub("", reason))
    for each in (node, *node.all_input_nodes):
        if "_" in each.name:  # others are words as well
            what = getattr(each.target, "__name__", "an input") if each is not node else "it"
            reason = re.sub(rf"\b{re.escape(each.name)}\b", what, reason)
    symbols: dict[str, str] = {}
    reason = _SYMBOL.sub(lambda m: symbols.setdefault(m[0], f"s{len(symbols)}"), reason)
    reason = _SET.sub(lambda m: f"{{{', '.join(sorted(m[1].split(', ')))}}}", reason)
    return " ".join(reason.split()).rstrip(".")
