"""Words in a line, or in the definitions that it uses, that hint at why tracing fixed a value.

They indicate a likely cause, not a proof. Doesn't import torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

EXPORT_FLAGS = re.compile(
    r"is_exporting|is_compiling|is_dynamo_compiling|is_torchdynamo|is_tracing|is_fx_tracing"
    r"|is_fx_symbolic_tracing|is_scripting|is_in_onnx_export|FakeTensor|is_fake"
)


# By pattern: the text for a branch whose test matches, the text for a value whose statement does,
# and the remedy.
_HINTS: Mapping[re.Pattern[str], tuple[str, str, str]] = {
    EXPORT_FLAGS: (
        "tests whether the model is being exported",
        "depends on whether the model is being exported",
        "compute the same in both cases, or remove the test",
    ),
    re.compile(r"\.training\b"): (
        "depends on the training mode",
        "depends on the training mode",
        "call .eval() on the model before it is exported, and on the reference",
    ),
    re.compile(
        r"\brandom\b|\brandint\(|\brandn?\(|\brandom_|default_rng|\bseed\b|uuid|secrets"
    ): (
        "depends on a random number, drawn once while tracing",
        "is a random number, drawn once while tracing",
        "draw it outside and pass it as an input",
    ),
    re.compile(r"\btime\.|perf_counter|monotonic|datetime|os\.environ|getenv"): (
        "depends on the time or the environment, read while tracing",
        "comes from the time or the environment, read while tracing",
        "pass it as an input, or set it in the model's constructor",
    ),
    re.compile(
        r"\.item\(|\.tolist\(|\.numpy\(|__array__|\.any\(|\.all\(|torch\.equal|allclose"
    ): (
        "depends on tensor values, and tracing kept one outcome",
        "is read from a tensor, and tracing kept one value",
        "compute it with tensors: torch.where, torch.cond",
    ),
    re.compile(r"\.shape\b|\.size\(|\.ndim\b|\.dim\(|\.numel\(|\blen\("): (
        "depends on a size, and tracing kept one outcome",
        "is computed from a size that tracing kept",
        "declare the dimension dynamic, and compute with x.shape where the result is used",
    ),
    re.compile(r"\bnp\.|\bnumpy\b"): (
        "depends on a value of NumPy, computed while tracing",
        "comes from NumPy, computed while tracing",
        "compute it with torch, or register it as a buffer",
    ),
    re.compile(r"get_default_dtype|\.dtype\b"): (
        "depends on a dtype at the time of the export",
        "depends on a dtype at the time of the export",
        "export with the default dtype and inputs that the reference runs with",
    ),
}
_READ_VALUE = next(
    hint for pattern, hint in _HINTS.items() if pattern.search("x.item()")
)
# For a line whose value depends on the export.
EXPORT_HINT = "; ".join(_HINTS[EXPORT_FLAGS][1:])


def find_branch_hint(text: str, reads_value: bool = False) -> str:
    """Return what a branch depends on, and the remedy; "" if unknown.

    The words of its test are the evidence.

    Args:
        reads_value: whether the test is known to read the value of a tensor.
    """
    hint = _READ_VALUE if reads_value else _find_hint(text)
    if hint is None:
        return ""
    branch, _, remedy = hint
    return f"it {branch}; {remedy}"


def find_value_hint(text: str, was_read: bool = False) -> str:
    """Return where a value comes from, and the remedy; "" if unknown.

    The words of its statement are the evidence.

    Args:
        was_read: whether the value is known to have been read from a tensor.
    """
    hint = _READ_VALUE if was_read else _find_hint(text)
    if hint is None:
        return ""
    _, value, remedy = hint
    return f"it {value}; {remedy}"


def _find_hint(text: str) -> tuple[str, str, str] | None:
    """Return the first hint whose pattern matches a string."""
    return next(
        (hint for pattern, hint in _HINTS.items() if pattern.search(text)), None
    )
