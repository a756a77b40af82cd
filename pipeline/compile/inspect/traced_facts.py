"""Facts of a manifest as reports have them: with operators and lines of the model's source in the
place of numbers of nodes. Compiling needs none of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from pipeline.program.graphs import iter_nodes
from pipeline.program.operators import node_label
from pipeline.program.source_lines import source_line


class SourceNodes:
    """The nodes of a method as its source gives it, not quantized, by place.

    Args:
        root: the workspace, in whose files lines are looked for.
    """

    def __init__(self, program: ExportedProgram, root: Path) -> None:
        self._nodes = list(iter_nodes(program))
        self._root = root

    def trace(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record with the line of the source, such as `x + y  # models/small.py:12, in
        Small.forward`, in the place of the number of its node."""
        place = record.get("place")
        fields = {name: value for name, value in record.items() if name != "place"}
        if place is None:
            return {**fields, "line": ""}
        return {
            **fields,
            "line": str(source_line(self._nodes[place], self._root) or ""),
        }

    def trace_operator(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the same with the operator of the source; a record without a place keeps what
        lowering made of it."""
        traced = self.trace(record)
        if record.get("place") is not None:
            traced["operator"] = node_label(self._nodes[record["place"]])
        return traced


def add_source_lines(
    delegation: Mapping[str, Any], program: ExportedProgram, root: Path
) -> dict[str, Any]:
    """Return a manifest's record of a delegation with a `line` in the place of each `place`.

    Args:
        program: the method as its source gives it, not quantized.
        root: the workspace.
    """
    nodes = SourceNodes(program, root)
    return {**delegation, "left": [*map(nodes.trace, delegation["left"])]}


def trace_operators(
    records: Sequence[Mapping[str, Any]], program: ExportedProgram, root: Path
) -> list[dict[str, Any]]:
    """Return a manifest's warnings or narrowed sizes with operators and lines of the source.

    Args:
        program: the method as its source gives it, not quantized.
        root: the workspace.
    """
    return [*map(SourceNodes(program, root).trace_operator, records)]
