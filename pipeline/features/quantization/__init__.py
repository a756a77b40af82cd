"""Quantization: the `quantize` step of a config, between a method's export and its compilation.

Backends name their quantizers and the quantizers' options (`backends.entry.Quantization`).

kind       the inputs and the key of quantize actions
perform    turns a method's program into a quantized one in the store
quantize   annotates, observes inputs, converts, exports again
facts      the share of weights and compute that was quantized, and why the rest was not
prepared   whether a program with observers still agrees with the float one, and where it diverges
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "quantization",
    "quantize methods before they are lowered (`quantize`)",
    kinds={"quantize": "pipeline.features.quantization.kind:describe_kind"},
    perform={"quantize": "pipeline.features.quantization.perform:quantize_method"},
    outlines={"quantize": "pipeline.features.quantization.records:QUANTIZE"},
)
