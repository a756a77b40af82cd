"""The records of quantized methods: what was quantized and how, and what the observers found.

Workers make them, the store checks them against these declarations, and manifests and reports hold
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pipeline.store.forms import Count

# In dB or as an error. Infinities and NaN are words, because strict JSON has no such numbers.
Decibels = float | Literal["inf", "-inf", "nan"]
CalibrationSource = Literal[
    "files", "calibration_inputs", "examples", "generated", "none"
]


_OBSERVER_REMARK = (
    {
        "kind": Literal["one value", "not finite", "cut off"],
        "value": str,
        "module": str,
        "seen": tuple[float | None, float | None],
        "range": (tuple[float | None, float | None], None),
        "nonfinite": Count,
    },
    "An observer whose range means little: it saw a single value, or infinities or NaN",
    "(`nonfinite` of them), or chose a `range` that cuts off much of the range that was `seen`.",
)
# The facts of a quantized method.
QUANTIZATION_FACTS: Mapping[str, Any] = {
    "quantizer": str,
    "activations": (
        list[Literal["static", "dynamic"]],
        "How activations are quantized: static, dynamic, both, or (empty) not at all.",
    ),
    "calibration": (
        {"inputs": Count, "source": CalibrationSource},
        "The number of inputs that observers saw, and their source: `none` without observers.",
    ),
    "weights": (
        {"bytes": Count, "quantized": Count},
        "The bytes of all weights and of the quantized weights, both counted as floats.",
    ),
    "compute": (
        {"multiplications": Count, "quantized": Count},
        "The multiplications in one call, and the number of them with two quantized factors.",
    ),
    "conversions": (
        Count,
        "The number of calls that quantize, dequantize or find a scale.",
    ),
    "left_float": (
        [{"name": str, "bytes": Count, "why": str}],
        "The largest tensors that quantization left in floating point, and why.",
    ),
    "observers": (
        {"count": Count, "remarked": Count, "remarks": [_OBSERVER_REMARK]},
        None,
        "The number of observers, the number of remarks about them, and the first remarks; null",
        "for a quantizer that prepares nothing.",
    ),
    "warnings": (list[str], "Sentences, the most serious first."),
}
