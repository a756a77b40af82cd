"""Finds the layers where a quantization loses most, beside those of the float program.

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

from pipeline.program.operators import base_name
from pipeline.validate.locate.node_values import NodeValues
from pipeline.validate.locate.walk import comparable
from pipeline.validate.metrics import OutputError, compare

MOST = 3


@dataclass(frozen=True)
class LayerNoise:
    """The noise of a layer, by its place in the float program.

    `own` is the error that the layer adds, `total` that of its value with all the noise of the
    layers before it.
    """

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
    """Return the `MOST` layers that add the most noise, the worst first, on one call of both.

    Args:
        origins: leads from places in the quantized program to those in the float one.
    """
    source.call(inputs)
    quantized.call(inputs)
    found = [noise for noise in _layers(source, quantized, origins) if noise.own.max_abs > 0]
    return sorted(found, key=lambda noise: noise.sqnr_db)[:MOST]


def _layers(
    source: NodeValues, quantized: NodeValues, origins: Mapping[int, int]
) -> Iterator[LayerNoise]:
    """Yield the noise of each layer, in the order of the float program."""
    counterparts: dict[int, Any] = {}
    for place in sorted(origins):  # the last of several gives the value, dequantized again
        values = quantized.values.get(place)
        operator = base_name(quantized.nodes[place])
        if values and not operator.startswith(("quantize", "choose_qparams")):
            counterparts[origins[place]] = values[0]
    held: dict[Node, Any] = {}
    for place, node in enumerate(source.nodes):
        values = source.values.get(place)
        if not values or node.graph is not source.program.graph:
            continue
        given, actual = values[0], counterparts.get(place)
        expected = _recompute(node, held) if node.op == "call_function" else None
        if node.op != "call_function" or actual is None or not comparable(actual, given):
            held[node] = given if expected is None else expected
            continue
        held[node] = actual = actual.reshape(given.shape)
        if expected is not None and comparable(actual, expected) and given.is_floating_point():
            own = compare(actual, expected.reshape(given.shape))
            yield LayerNoise(place, own, compare(actual, given))


def _recompute(node: Node, held: Mapping[Node, Any]) -> Any:
    """Compute the float operator on the quantized program's values; None where that fails."""
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
