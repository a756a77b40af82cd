"""Finds operators that were exported in training mode, and quantization without a benefit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.program.graphs import iter_nodes
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import operator_name
from pipeline.program.random_operators import REMEDIES, random_cause
from pipeline.program.training import find_training_outputs
from pipeline.store.errors import plural


def find_training_mode(
    program: ExportedProgram, origins: Mapping[int, int] | None = None
) -> list[dict[str, Any]]:
    """Return a warning for each kind of operator that was exported in training mode.

    A method that trains gets none: it has these operators on purpose.

    Args:
        origins: maps places in a quantized program to places in its source.
    """
    if find_training_outputs(program):
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
            {
                "what": sentence,
                "operator": operator,
                "module": innermost_module(node),
                "place": source_place,
            }
        )
    return warnings


def warn_of_quantization(
    facts: Mapping[str, Any], delegation: Mapping[str, Any] | None
) -> str:
    """Return a warning about a quantized method, or "".

    Args:
        facts: facts about the method's quantization.
        delegation: facts about the method's delegation; None if it has no partitioners.
    """
    if delegation is None:
        return _describe_undelegated(facts)
    return _describe_unused_quantization(delegation)


def _describe_undelegated(facts: Mapping[str, Any]) -> str:
    """Describe how a quantized method runs without a partitioner.

    Return "" if the method only looks up quantized embeddings.
    """
    if not facts["conversions"]:
        return ""
    return (
        f"quantized without a partitioner: portable kernels run {facts['conversions']} quantize "
        "and dequantize calls and compute in floating point between them, slower and, with few "
        "weights, in a larger file; name a partitioner, or leave out `quantize`"
    )


def _describe_unused_quantization(delegation: Mapping[str, Any]) -> str:
    """Say that no delegate runs quantized operators; "" if one does, or nothing is delegated."""
    delegated = [
        segment["operators"] for segment in delegation["segments"] if segment["backend"]
    ]
    quantizing = [name for names in delegated for name in names if "quantize" in name]
    undelegated = [name for name in delegation["undelegated"] if "quantize" in name]
    if not delegated or quantizing or not undelegated:
        return ""
    calls = sum(delegation["undelegated"][name] for name in undelegated)
    return (
        f"quantized, but no delegate runs the quantized operators: portable kernels run {calls} "
        "quantize"
        " and dequantize calls, and compute in floating point between them; name a partitioner "
        "that supports them, or leave out `quantize`"
    )
