"""Warn of a quantized method that no delegate can run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def describe_undelegated(facts: Mapping[str, Any]) -> str:
    """Say what becomes of a quantized method without a partitioner; "" where it only looks up
    quantized embeddings."""
    if not facts["conversions"]:
        return ""
    return (
        f"quantized without a partitioner: portable kernels run {facts['conversions']} quantize "
        "and dequantize calls and compute in floating point between them, slower and, where "
        "weights are few, in a larger file; name a partitioner, or leave `quantize` out"
    )
