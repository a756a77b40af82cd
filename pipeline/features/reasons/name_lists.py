"""Looks up the names in partitioners' options, to find those that match no node of a program.

Upstream accepts any name silently. Here, a build warns of a listed name that matches nothing in any
method of a package whose config lists it; the package is still built.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.backends import PartitionerSpec
from pipeline.backends.entry import NameKind
from pipeline.program.graphs import iter_nodes
from pipeline.program.operators import node_label
from pipeline.store.errors import did_you_mean

_MOST = 10  # maximum number of names in a hint


def look_up_names(
    spec: PartitionerSpec, program: ExportedProgram
) -> list[dict[str, Any]]:
    """Look up the names in a partitioner's options in the program that it is about to see."""
    listed_names = []
    for option, kind in spec.backend.lowering.name_lists.items():
        names = getattr(spec.options, option) or ()
        node_names = {
            node_name
            for node in iter_nodes(program)
            for node_name in _names_of(node, kind)
        }
        for name in names:
            fits = any(
                name in node_name if kind == "module type" else name == node_name
                for node_name in node_names
            )
            words = {
                node_name.rpartition(".")[2] if kind == "module type" else node_name
                for node_name in node_names
            }
            if fits:
                hint = ""
            else:
                hint = did_you_mean(name, sorted(words), _MOST)
            listed_names.append(
                {
                    "option": f"{spec.name}.{option}",
                    "name": name,
                    "found": fits,
                    "hint": hint,
                }
            )
    return listed_names


def _names_of(node: Node, kind: NameKind) -> Iterator[str]:
    """Yield the names of one kind that a node has."""
    if node.op != "call_function":
        return
    if kind == "operator":
        yield node_label(node)
    elif kind == "node":
        yield node.name
    else:
        for _, module in (node.meta.get("nn_module_stack") or {}).values():
            yield module if isinstance(module, str) else module.__qualname__
