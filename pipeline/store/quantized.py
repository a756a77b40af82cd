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
    "An observer whose range means little: it saw one value, infinities or NaN (`nonfinite` of",
    "them), or chose a `range` that cuts off much of what was `seen`.",
)
# The facts of a quantized method.
QUANTIZATION_FACTS: Mapping[str, Any] = {
    "quantizer": str,
    "activations": (
        list[Literal["static", "dynamic"]],
        "How they are quantized: static, dynamic, both, or not at all.",
    ),
    "calibration": (
        {"inputs": Count, "source": CalibrationSource},
        "The number of inputs that observers saw, and their source; `none` where nothing observes.",
    ),
    "weights": (
        {"bytes": Count, "quantized": Count},
        "The bytes of a method's weights, each as floats, and of those that are quantized.",
    ),
    "compute": (
        {"multiplications": Count, "quantized": Count},
        "The multiplications of one call, and those of them whose factors both are quantized.",
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
        "The number of observers, that of remarks about them, and the first remarks; null for a",
        "quantizer that prepares nothing.",
    ),
    "warnings": (list[str], "Sentences, the gravest first."),
}
