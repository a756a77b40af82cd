"""Finds the layers at which quantization loses most, compared with the float program.

A layer's own loss is measured on its inputs from the quantized program: the float operator, with
its float weights, is computed on the same activations and compared with the output of the quantized
layer. A layer that merely passes on earlier noise is therefore not blamed for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx import Node

from pipeline.features.locating.case import FailureCase, describe_error
from pipeline.features.locating.records import CulpritRecord as Culprit
from pipeline.features.locating.walk import comparable
from pipeline.program.operators import base_name, control_flow_name, node_label
from pipeline.validate.metrics import OutputError, compare
from pipeline.validate.node_values import NodeValues

MOST = 3


def locate_quantization(
    case: FailureCase, origins: Mapping[int, int]
) -> Iterator[Culprit]:
    """Yield the `MOST` layers that add the most noise to the last call, worst first.

    Args:
        origins: maps places in the quantized program to places in the float program.
    """
    inputs = case.sequence[-1][1]
    source = case.advance(case.evidence.sources)
    quantized = case.advance(case.lowered_programs)
    source.call(inputs)
    quantized.call(inputs)
    layers = [
        layer for layer in _layers(source, quantized, origins) if layer[1].max_abs > 0
    ]
    layers.sort(
        key=lambda layer: math.inf if layer[1].sqnr_db is None else layer[1].sqnr_db
    )
    places = {origin: place for place, origin in origins.items()}
    lead = "the quantization itself diverges from floating point, most in"
    for place, added_error, total in layers[:MOST]:
        spot = case.find_runner(places[place])
        operator = node_label(source.nodes[place])
        where = case.describe(spot, operator)
        error = describe_error(added_error)
        context = f"{describe_error(total)} with everything before it"
        sentence = f"{lead} {where}: {error} by itself, {context}"
        yield {
            **case.culprit(spot, "operator", sentence, added_error),
            "operator": operator,
        }
        lead = "then in"


def _layers(
    source: NodeValues, quantized: NodeValues, origins: Mapping[int, int]
) -> Iterator[tuple[int, OutputError, OutputError]]:
    """Yield each layer's place in the float program, its own error, and its accumulated error.

    The accumulated error includes the noise of all layers before it.
    """
    counterparts: dict[int, Any] = {}
    for place in sorted(
        origins
    ):  # the last node at a place gives the value, dequantized
        values = quantized.values.get(place)
        operator = base_name(quantized.nodes[place])
        if values and not operator.startswith(("quantize", "choose_qparams")):
            counterparts[origins[place]] = values[0]
    computed: dict[Node, Any] = {}
    for place, node in enumerate(source.nodes):
        source.budget.check()
        values = source.values.get(place)
        if not values or node.graph is not source.program.graph:
            continue
        float_value = values[0]
        actual = counterparts.get(place)
        expected = None
        if node.op == "call_function":
            expected = _recompute(node, computed)
        if (
            node.op != "call_function"
            or actual is None
            or not comparable(actual, float_value)
        ):
            computed[node] = float_value if expected is None else expected
            continue
        computed[node] = actual = actual.reshape(float_value.shape)
        if (
            expected is not None
            and comparable(actual, expected)
            and float_value.is_floating_point()
        ):
            added_error = compare(actual, expected.reshape(float_value.shape))
            yield place, added_error, compare(actual, float_value)


def _recompute(node: Node, computed: Mapping[Node, Any]) -> Any:
    """Compute a float operator on the quantized program's values, or return None if that fails."""
    if control_flow_name(node) or _changes_state(node):
        return None
    try:
        args, kwargs = torch.fx.node.map_arg(
            (node.args, node.kwargs), lambda n: computed[n]
        )
        with torch.no_grad():
            return node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception:  # an operator may raise anything for other sizes
        return None


def _changes_state(node: Node) -> bool:
    """Return whether a node calls an operator that writes to one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)
