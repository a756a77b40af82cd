"""Where a quantization loses most: each layer of a quantized program beside the float one's.

A layer's own loss is measured on what the quantized program hands it: the float operator, with its
float weights, is computed on the same activations and compared with what the quantized layer gives.
So a layer that merely passes on the noise of those before it is not blamed for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from pipeline.program.operators import operator_of
from pipeline.validate.locate.node_values import NodeValues
from pipeline.validate.locate.walk import comparable
from pipeline.validate.metrics import OutputError, compare

MOST = 3


@dataclass(frozen=True)
class LayerNoise:
    """`place` is in the float program. `own` is the error that the layer adds, `total` that of its
    value with all the noise of the layers before it."""

    place: int
    own: OutputError
    total: OutputError

    @property
    def sqnr_db(self) -> float:
        return math.inf if self.own.sqnr_db is None else self.own.sqnr_db


def worst_layers(
    source: NodeValues,
    quantized: NodeValues,
    origins: Mapping[int, int],
    inputs: Sequence[Any],
) -> list[LayerNoise]:
    """The `MOST` layers that add the most noise, the worst first, on one call of both.

    Args:
        origins: of a place in the quantized program, that in the float one of which it is made.
    """
    source.call(inputs)
    quantized.call(inputs)
    found = [noise for noise in _layers(source, quantized, origins) if noise.own.max_abs > 0]
    return sorted(found, key=lambda noise: noise.sqnr_db)[:MOST]


def _layers(
    source: NodeValues, quantized: NodeValues, origins: Mapping[int, int]
) -> Iterator[LayerNoise]:
    """In the order of the float program."""
    counterparts: dict[int, Any] = {}
    for place in sorted(origins):  # the last of several gives the value, dequantized again
        values = quantized.values.get(place)
        operator = operator_of(quantized.nodes[place])
        if values and not operator.startswith(("quantize", "choose_qparams")):
            counterparts[origins[place]] = values[0]
    places = {node: place for place, node in enumerate(source.nodes)}
    held: dict[Node, Any] = {}
    for place, node in enumerate(source.nodes):
        values = source.values.get(place)
        if not values or node.graph is not source.program.graph:
            continue
        given = values[0]
        actual = counterparts.get(place)
        if node.op == "call_function" and actual is not None and comparable(actual, given):
            actual = actual.reshape(given.shape)
            expected = _again(node, held)
            if (
                expected is not None
                and comparable(actual, expected)
                and given.dtype.is_floating_point
            ):
                own = compare(actual, expected.reshape(given.shape))
                yield LayerNoise(places[node], own, compare(actual, given))
            held[node] = actual
        else:
            held[node] = _again(node, held) if node.op == "call_function" else given
            if held[node] is None:
                held[node] = given


def _again(node: Node, held: Mapping[Node, Any]) -> Any:
    """The float operator on what the quantized program has; None where it can't be computed so."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable:
        target = node.target if callable(node.target) else None
        if target is None or isinstance(target, torch._ops.OperatorBase):
            return None
    try:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: held[n])
        with torch.no_grad():
            return node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception:  # whatever an operator raises for other sizes
        return None
