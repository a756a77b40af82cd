"""Warns of operators that were exported in training mode, with the compiled method: a build that
finds this in the store repeats the warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from executorch.exir import schema
from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.program.graphs import iter_nodes
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import operator_name
from pipeline.program.random_operators import REMEDIES, random_cause
from pipeline.program.training import find_training_outputs
from pipeline.store.compiled import Instructions, LoweringWarning
from pipeline.store.errors import plural


def warn_of_training_mode(
    plan: schema.ExecutionPlan,
    instructions: Instructions,
    program: ExportedProgram,
    origins: Mapping[int, int] | None,
    delegation: Mapping[str, Any],
) -> list[LoweringWarning]:
    """Return a warning for each kind of operator that was exported in training mode. A method that
    trains has them on purpose.

    Args:
        program: the one that was lowered.
        origins: leads from places in a quantized program to those in its source.
    """
    if find_training_outputs(program) is not None:
        return []
    calls: dict[str, list[tuple[int, Node]]] = {}
    for place, node in enumerate(iter_nodes(program)):
        if random_cause(node) == "training":
            calls.setdefault(operator_name(node), []).append((place, node))
    warnings = []
    for operator, nodes in calls.items():
        place, node = nodes[0]
        sentence = f"is in training mode ({plural(len(nodes), 'call')}); {REMEDIES['training']}"
        source_place = place if origins is None else origins.get(place)
        warnings.append(
            LoweringWarning(
                what=sentence,
                operator=operator,
                module=innermost_module(node),
                place=source_place,
            )
        )
    return warnings
