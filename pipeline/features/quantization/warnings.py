"""Warnings about a quantized method, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.store.errors import plural

_SHOWN = 3  # maximum number of remarks on observers in a warning
# Ranges that cut off outliers can be the best choice, so only the report mentions them.
_KINDS = {"one value": "saw one value", "not finite": "saw infinities or NaN"}


def find_warnings(
    facts: Mapping[str, Any], prepared: Mapping[str, Any] | None, float_operators: int
) -> Iterator[str]:
    """Yield warnings about a quantized method, the gravest first.

    Args:
        facts, prepared: as `store.quantized` declares them.
        float_operators: number of operators in control flow, which stays in floating point.
    """
    if prepared is not None and prepared["agrees"] is False:
        yield describe_divergence(prepared)
    if not facts["weights"]["quantized"] and not facts["compute"]["quantized"]:
        yield (
            f"{facts['quantizer']} quantized none of its weights and none of its compute; leave "
            "out `quantize`, or choose a quantizer that supports its operators"
        )
    if float_operators:
        yield (
            f"its control flow is not quantized: {float_operators} of its operators compute in "
            "floating point"
        )
    yield from _describe_observers(facts["observers"])


def describe_divergence(prepared: Mapping[str, Any]) -> str:
    """Return where a prepared program diverges from its float one, and what to do about it."""
    worst = prepared["outputs"][0]
    text = (
        f"{worst['output']} differs from the float program before anything is rounded, by more "
        "than float arithmetic can explain"
    )
    divergence = prepared["divergence"]
    if divergence is None:
        return f"{text}; its quantizer changes the method: leave `quantize` out"
    text += f"; it begins at {_place(divergence['operator'], divergence['module'])}"
    folded = [
        _place(*operator_and_module) for operator_and_module in divergence["folded"]
    ]
    if not folded:
        return f"{text}, which the quantizer changes: leave `quantize` out"
    text += f", with {' and '.join(folded)} folded into it"
    if divergence["shared"]:
        return (
            f"{text}: other calls read {divergence['shared']} too, "
            "and it is folded more than once; give each call a module of its own"
        )
    return f"{text}: fold it before the export, or leave `quantize` out"


def _place(operator: str, module: str) -> str:
    if module:
        return f"{operator} in module {module}"
    return operator


def _describe_observers(observers: Mapping[str, Any] | None) -> Iterator[str]:
    if observers:
        remarks = observers["remarks"]
    else:
        remarks = []
    for kind, words in _KINDS.items():
        values = [remark["value"] for remark in remarks if remark["kind"] == kind]
        if values:
            more = ""
            if len(values) > _SHOWN:
                more = f" and {len(values) - _SHOWN} more"
            yield (
                f"{plural(len(values), 'observer')} {words}: {', '.join(values[:_SHOWN])}{more}; "
                "their scales fit no other values; calibrate on real inputs, or keep these "
                "modules in floating point with `modules`"
            )
