"""Words in a line, or in what it depends on, that tell why tracing may have kept something of it.

They tell a likely cause, not a proof. No torch here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

EXPORT_FLAGS = re.compile(
    r"is_exporting|is_compiling|is_dynamo_compiling|is_torchdynamo|is_tracing|is_fx_tracing"
    r"|is_fx_symbolic_tracing|is_scripting|is_in_onnx_export|FakeTensor|is_fake"
)


@dataclass(frozen=True)
class Hint:
    """Words of a test or a statement that tell a likely cause."""

    pattern: re.Pattern[str]
    branch: str
    value: str
    remedy: str


HINTS = (
    Hint(
        EXPORT_FLAGS,
        "tests whether the model is being exported",
        "depends on whether the model is being exported",
        "compute the same in both cases, or remove the test",
    ),
    Hint(
        re.compile(r"\.training\b"),
        "depends on the training mode",
        "depends on the training mode",
        "call .eval() on the model before it is exported, and on the reference",
    ),
    Hint(
        re.compile(
            r"\brandom\b|\brandint\(|\brandn?\(|\brandom_|default_rng|\bseed\b|uuid|secrets"
        ),
        "depends on a random number, drawn once while tracing",
        "is a random number, drawn once while tracing",
        "draw it outside and pass it as an input",
    ),
    Hint(
        re.compile(r"\btime\.|perf_counter|monotonic|datetime|os\.environ|getenv"),
        "depends on the time or the environment, read while tracing",
        "comes from the time or the environment, read while tracing",
        "pass it as an input, or set it in the model's constructor",
    ),
    Hint(
        re.compile(
            r"\.item\(|\.tolist\(|\.numpy\(|__array__|\.any\(|\.all\(|torch\.equal|allclose"
        ),
        "depends on values of tensors, and tracing kept one outcome",
        "is read from a tensor, and tracing kept one value",
        "compute it with tensors: torch.where, torch.cond",
    ),
    Hint(
        re.compile(r"\.shape\b|\.size\(|\.ndim\b|\.dim\(|\.numel\(|\blen\("),
        "depends on a size, and tracing kept one outcome",
        "is computed from a size that tracing kept",
        "declare the dimension dynamic, and compute with x.shape where the result is used",
    ),
    Hint(
        re.compile(r"\bnp\.|\bnumpy\b"),
        "depends on a value of NumPy, computed while tracing",
        "comes from NumPy, computed while tracing",
        "compute it with torch, or register it as a buffer",
    ),
    Hint(
        re.compile(r"get_default_dtype|\.dtype\b"),
        "depends on a dtype at the time of the export",
        "depends on a dtype at the time of the export",
        "export with the default dtype and inputs that the reference runs with",
    ),
)


READ_VALUE = next(hint for hint in HINTS if hint.pattern.search("x.item()"))


def find_hint(text: str) -> Hint | None:
    """Return the first hint whose words are in a text."""
    return next((hint for hint in HINTS if hint.pattern.search(text)), None)
