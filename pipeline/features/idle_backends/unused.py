"""Warns of quantization that no delegate runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from executorch.exir import schema
from torch.export import ExportedProgram

from pipeline.store.compiled import Instructions, LoweringWarning


def warn_of_unused_quantization(
    plan: schema.ExecutionPlan,
    instructions: Instructions,
    program: ExportedProgram,
    origins: Mapping[int, int] | None,
    delegation: Mapping[str, Any],
) -> Iterator[LoweringWarning]:
    """Yield a warning for a quantized method whose delegates run nothing that was quantized.

    Args:
        origins: None for a method that was not quantized.
    """
    sentence = "" if origins is None else describe_unused_quantization(delegation)
    if sentence:
        yield LoweringWarning(what=sentence, operator="", module="", place=None)


def describe_unused_quantization(delegation: Mapping[str, Any]) -> str:
    """Say that no delegate runs what was quantized; "" where one does, or nothing is delegated."""
    delegated = [
        segment["operators"] for segment in delegation["segments"] if segment["backend"]
    ]
    quantizing = [name for names in delegated for name in names if "quantize" in name]
    undelegated = [name for name in delegation["undelegated"] if "quantize" in name]
    if not delegated or quantizing or not undelegated:
        return ""
    calls = sum(delegation["undelegated"][name] for name in undelegated)
    return (
        f"quantized, and no delegate runs what was quantized: portable kernels run {calls} quantize"
        " and dequantize calls, and compute in floating point between them; name a partitioner that"
        " takes it, or leave `quantize` out"
    )
