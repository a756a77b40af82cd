"""Traces the facts of a manifest for reports: node numbers become source lines and operators.

Compiling doesn't need this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from pipeline.program.graphs import iter_nodes
from pipeline.program.operators import node_label
from pipeline.program.source_lines import source_line


class SourceNodes:
    """The nodes of a method's source program, before quantization, by place.

    Args:
        root: the workspace, whose files contain the source lines.
    """

    def __init__(self, program: ExportedProgram, root: Path) -> None:
        self._nodes = list(iter_nodes(program))
        self._root = root

    def trace(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record with a source line in place of the number of its node.

        A line looks like `x + y  # models/small.py:12, in Small.forward`.
        """
        place = record.get("place")
        fields = {name: value for name, value in record.items() if name != "place"}
        if place is None:
            return {**fields, "line": ""}
        return {
            **fields,
            "line": str(source_line(self._nodes[place], self._root) or ""),
        }

    def trace_operator(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record with the line and the operator of the source.

        A record without a place keeps the operator that lowering made.
        """
        traced = self.trace(record)
        if record.get("place") is not None:
            traced["operator"] = node_label(self._nodes[record["place"]])
        return traced


def add_source_lines(
    delegation: Mapping[str, Any], program: ExportedProgram, root: Path
) -> dict[str, Any]:
    """Return a manifest's delegation record with a `line` in place of each `place`.

    Args:
        program: the method's source program, before quantization.
        root: the workspace.
    """
    nodes = SourceNodes(program, root)
    return {**delegation, "left": [*map(nodes.trace, delegation["left"])]}


def trace_operators(
    records: Sequence[Mapping[str, Any]], program: ExportedProgram, root: Path
) -> list[dict[str, Any]]:
    """Return a manifest's warnings or narrowed sizes with operators and lines of the source.

    Args:
        program: the method's source program, before quantization.
        root: the workspace.
    """
    return [*map(SourceNodes(program, root).trace_operator, records)]
