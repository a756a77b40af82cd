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
from pipeline.store.compiled import LoweringWarning, NarrowedSize


class SourceNodes:
    """The nodes of a method as its source gives it, not quantized, by place.

    Args:
        root: the workspace, in whose files lines are looked for.
    """

    def __init__(self, program: ExportedProgram, root: Path) -> None:
        self._nodes = list(iter_nodes(program))
        self._root = root

    def find_line(self, place: int | None) -> str:
        """Return a line such as `x + y  # models/small.py:12, in Small.forward`, or ""."""
        if place is None:
            return ""
        return str(source_line(self._nodes[place], self._root) or "")

    def find_operator(self, place: int | None, otherwise: str) -> str:
        """Return the operator at a place; without one, what lowering made of it."""
        if place is None:
            return otherwise
        return node_label(self._nodes[place])


def add_source_lines(
    delegation: Mapping[str, Any], program: ExportedProgram, root: Path
) -> dict[str, Any]:
    """Return a manifest's record of a delegation with a `line` in the place of each `place`.

    Args:
        program: the method as its source gives it, not quantized.
        root: the workspace.
    """
    nodes = SourceNodes(program, root)
    undelegated = []
    for call in delegation["left"]:
        undelegated.append(
            {
                "operator": call["operator"],
                "line": nodes.find_line(call.get("place")),
                "module": call["module"],
                "reason": call["reason"],
            }
        )
    return {**delegation, "left": undelegated}


def trace_warnings(
    warnings: Sequence[Mapping[str, Any]], program: ExportedProgram, root: Path
) -> list[LoweringWarning]:
    """Return a manifest's warnings with lines of the model's source.

    Args:
        program: the method as its source gives it, not quantized.
        root: the workspace.
    """
    nodes = SourceNodes(program, root)
    records: list[LoweringWarning] = []
    for warning in warnings:
        records.append(
            {
                "what": warning["what"],
                "operator": nodes.find_operator(
                    warning.get("place"), warning["operator"]
                ),
                "module": warning["module"],
                "line": nodes.find_line(warning.get("place")),
            }
        )
    return records


def trace_narrowed(
    narrowed: Sequence[Mapping[str, Any]], program: ExportedProgram, root: Path
) -> list[NarrowedSize]:
    """Return a manifest's records of narrowed sizes with operators and lines of the source.

    Args:
        program: the method as its source gives it, not quantized.
        root: the workspace.
    """
    nodes = SourceNodes(program, root)
    records: list[NarrowedSize] = []
    for size in narrowed:
        records.append(
            {
                "size": size["size"],
                "source": size["source"],
                "lowered": size["lowered"],
                "operator": nodes.find_operator(size.get("place"), size["operator"]),
                "module": size["module"],
                "line": nodes.find_line(size.get("place")),
            }
        )
    return records
