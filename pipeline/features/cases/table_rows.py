"""Lets generated integers reach every row of a table, such as the embeddings of a language model.

Generated integers stay within the range of the examples, since any other one may be an invalid
index. An example of a few tokens would leave almost all rows of a table unread, and a package whose
other rows are wrong would pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.program.operators import base_name, only_moves

_TABLES = frozenset(
    {"embedding", "embedding_2bit", "embedding_4bit", "embedding_byte"}
    | {"index", "index_select"}
)
_CASTS = frozenset({"_to_copy", "to"})
# They read only the size or the dtype of a tensor.
_READING_NONE = frozenset({"_assert_tensor_metadata", "sym_size"})


def widen_integers(program: ExportedProgram, example_values: list[Any]) -> None:
    """Add the first and the last row to the values of each argument that only indexes tables.

    Args:
        example_values: the values of each argument in the examples; empty without examples.
    """
    names = program.graph_signature.user_inputs
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for place, name in enumerate(names):
        rows = _count_rows(nodes[name]) if name in nodes else None
        if rows:
            example_values += [()] * (len(names) - len(example_values))
            ends = torch.tensor([0, rows - 1])
            example_values[place] = (*example_values[place], ends)


def _count_rows(index: Node) -> int | None:
    """Return the rows of the smallest table that integers index; None if they have other uses."""
    least = None
    for user in index.users:
        if base_name(user) in _READING_NONE:
            continue
        if base_name(user) in _TABLES:
            rows = _count_rows_of(user, index)
        elif only_moves(user) or (base_name(user) in _CASTS and _is_integer(user)):
            rows = _count_rows(user)
        else:
            rows = None
        if not rows:
            return None
        least = min(rows, least or rows)
    return least


def _count_rows_of(lookup: Node, index: Node) -> int | None:
    """Return the rows of the table of a lookup, if integers index nothing but its rows."""
    table, *arguments = lookup.args
    name = base_name(lookup)
    is_row = arguments[:1] == [[index]] if name == "index" else table is not index
    is_row &= name != "index_select" or arguments[0] == 0
    rows = table.meta["val"].shape[0] if isinstance(table, Node) else None
    return rows if is_row and isinstance(rows, int) else None


def _is_integer(node: Node) -> bool:
    fake = node.meta.get("val")
    is_tensor = isinstance(fake, Tensor)
    return is_tensor and not (fake.is_floating_point() or fake.dtype is torch.bool)
