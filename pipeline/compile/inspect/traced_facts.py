"""Prepare a manifest's facts for reports: replace node places by operators and lines of the source.

Compiling needs none of this.
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
        root: the workspace whose files are searched for source lines.
    """

    def __init__(self, program: ExportedProgram, root: Path) -> None:
        self._nodes = list(iter_nodes(program))
        self._root = root

    def trace(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record with its node's `place` replaced by the `line` of the source.

        Such a line is `x + y  # models/small.py:12, in Small.forward`.
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
        """Return a record with the line and the `operator` of the source.

        A record without a place keeps its operator from the lowered program.
        """
        traced = self.trace(record)
        if record.get("place") is not None:
            traced["operator"] = node_label(self._nodes[record["place"]])
        return traced


def add_source_lines(
    delegation: Mapping[str, Any], program: ExportedProgram, root: Path
) -> dict[str, Any]:
    """Return a manifest's delegation record with each `place` replaced by a `line`.

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
