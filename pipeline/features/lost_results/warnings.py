"""Warns about lost results of `torch.cond` when a method is compiled or its failure is located."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from executorch.exir import schema
from torch.export import ExportedProgram

from pipeline.features.lost_results.conds import find_cond
from pipeline.features.lost_results.lost_results import (
    LostResult,
    describe_loss,
    find_lost_results,
)
from pipeline.program.graphs import iter_nodes
from pipeline.program.module_paths import innermost_module
from pipeline.store.compiled import Instructions


def find_placed_losses(
    plan: schema.ExecutionPlan, places: Mapping[int, int], program: ExportedProgram
) -> list[tuple[LostResult, int | None, str]]:
    """Return the results that a plan loses, each with its `torch.cond` and a description.

    The `torch.cond` is given by its place in the program, or None if it isn't known.

    Args:
        places: by instruction, the place in the program of the node that it belongs to.
    """
    return [
        (loss, find_cond(loss, plan, places, program), describe_loss(loss))
        for loss in find_lost_results(plan)
    ]


def warn_of_lost_conds(
    plan: schema.ExecutionPlan,
    instructions: Instructions,
    program: ExportedProgram,
    origins: Mapping[int, int] | None = None,
) -> list[dict[str, Any]]:
    """Return a warning for each `torch.cond` of an emitted method whose result is lost.

    Args:
        program: the program that was lowered.
        origins: maps places in a quantized program to places in its source.
    """
    losses = find_placed_losses(plan, instructions.places, program)
    nodes = list(iter_nodes(program)) if losses else []
    warnings: dict[int | None, dict[str, Any]] = {}
    for _, place, sentence in losses:
        module = "" if place is None else innermost_module(nodes[place])
        source = place if origins is None or place is None else origins.get(place)
        warning = {
            "what": sentence,
            "operator": "cond",
            "module": module,
            "place": source,
        }
        warnings.setdefault(place, warning)
    return list(warnings.values())
