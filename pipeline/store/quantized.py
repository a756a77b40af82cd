"""The records of quantized methods: what was quantized and how, and what observing showed.

A worker makes them, the store checks them by these declarations, manifest and report hold them.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from pipeline.store.forms import Count

# In dB or as an error; strict JSON has no infinities.
Decibels = float | Literal["inf", "-inf", "nan"]
CalibrationSource = Literal[
    "files", "calibration_inputs", "examples", "generated", "none"
]


class CalibrationInputs(TypedDict):
    """The number of inputs that observers saw, and their source; `none` where nothing observes."""

    inputs: Count
    source: CalibrationSource


class QuantizedBytes(TypedDict):
    """The bytes of a method's weights, each as floats, and those of them that are quantized."""

    bytes: Count
    quantized: Count


class QuantizedCompute(TypedDict):
    """The multiplications of one call, and those of them whose factors both are quantized."""

    multiplications: Count
    quantized: Count


class LeftFloat(TypedDict):
    """A tensor that quantization left in floating point, and why."""

    name: str
    bytes: Count
    why: str


class ObserverRemark(TypedDict):
    """An observer whose range means little: it saw one value, infinities or NaN (`nonfinite` of
    them), or chose a `range` that cuts off much of what was `seen`."""

    kind: Literal["one value", "not finite", "cut off"]
    value: str
    module: str
    seen: tuple[float | None, float | None]
    range: tuple[float | None, float | None] | None
    nonfinite: Count


class Observers(TypedDict):
    """The number of observers, that of remarks about them, and the first remarks."""

    count: Count
    remarked: Count
    remarks: list[ObserverRemark]


class QuantizationFacts(TypedDict):
    """The facts of a quantized method.

    `activations` is how they are quantized: static, dynamic, both, or not at all; `conversions` the
    number of calls that quantize, dequantize or find a scale; `left_float` has the largest tensors
    left in floating point; `observers` is None for a quantizer that prepares nothing; `warnings`
    are sentences, the gravest first.
    """

    quantizer: str
    activations: list[Literal["static", "dynamic"]]
    calibration: CalibrationInputs
    weights: QuantizedBytes
    compute: QuantizedCompute
    conversions: Count
    left_float: list[LeftFloat]
    observers: Observers | None
    warnings: list[str]
