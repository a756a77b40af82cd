"""The form of a method's record in `report.json`: its calls, verdicts, failures and figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

# Python 3.11's own TypedDict lacks information that pydantic needs for a schema.
from typing_extensions import NotRequired, TypedDict  # noqa: UP035

from pipeline.report.verdicts import Verdict

# Strict JSON has no infinities; None means that a figure is undefined.
Figure = float | Literal["inf", "-inf", "nan"] | None


class OutputErrorRecord(TypedDict):
    """The error of one output of one call, compared with that of the source program.

    Greatest, mean and 99.9th percentile of the absolute error; `relative` to the signal; signal to
    noise ratio in dB; cosine; `agreement`, the share of rows whose greatest value has the same
    place, `agreeing` of `rows`; `nonfinite`, the places where both are the same infinity or NaN,
    and `disagreeing`, those where one alone is; `of_limit`, the greatest ratio of an error to its
    limit, above 1 where it is exceeded; `judged` is false where the limits are too wide to mean
    anything; `mismatch` of kind, dtype or shape.
    """

    max_abs: Figure
    mean_abs: Figure
    p999_abs: NotRequired[Figure]
    relative: NotRequired[Figure]
    sqnr_db: Figure
    cosine: NotRequired[Figure]
    agreement: NotRequired[Figure]
    agreeing: NotRequired[int]
    rows: NotRequired[int]
    nonfinite: NotRequired[int]
    disagreeing: NotRequired[int]
    of_limit: NotRequired[Figure]
    judged: NotRequired[bool]
    mismatch: NotRequired[str | None]


# A generated input set or a sequence of calls that was not run, or a case that is missing from the
# bundled program.
SKIP = {"origin": (str, "Empty for all of a method."), "reason": str}

# Entries of `left_out` that are not input sets: for want of time, the whole method or its timing;
# and a whole method that was not requested.
ALL, LATENCY, UNASKED = "all", "latency", "not requested"
# What a failure is about: the package lacks the method; the method's declarations; the difference
# between an output and the quantized program's; the difference between that program and the float
# program; the source can't serve as a measure; the difference between the exported program and its
# reference. Anything else is "".
FailureSubject = Literal[
    "", "lacking", "declared", "quantized", "quantization", "source", "reference"
]


_LIMITS = dict[str, float | None]
_FAILURE = (
    {
        "method": str,
        "inputs": str,
        "output": str,
        "what": str,
        "about?": FailureSubject,
        "of_limit?": (
            Figure,
            "The ratio of the error to its limit, where one is exceeded.",
        ),
    },
    "A failure of a method; `inputs` and `output` are empty where the whole method failed.",
)
_POOLED = (
    {
        "output": str,
        "calls": int,
        "values": int,
        "max_abs": (Figure, "The greatest absolute error."),
        "sqnr_db": (Figure, "Signal to noise ratio in dB."),
        "cosine": Figure,
        "agreement": (
            Figure,
            "The share of rows whose greatest value has the same place: `agreeing` of `rows`.",
        ),
        "agreeing": int,
        "rows": int,
    },
    "What quantization does to one output, over all its values in several calls.",
)
_MOVEMENT = (
    {
        "output": str,
        "calls": int,
        "largest": (Figure, "The greatest distance."),
        "typical": (Figure, "The mean distance."),
        "share": (Figure, "The share of elements that moved."),
        "judged": (
            bool,
            "False where no comparison of it could have failed, with the `reason`.",
        ),
        "reason?": str,
        "fixed?": (
            Literal["nothing", "sizes", "values"],
            "What determines an output that no input's value reaches: `nothing` but the program,",
            "or `sizes` too.",
        ),
        "redrawn?": (bool, "It moves on other inputs than the calls had."),
        "nonfinite?": (int, "The values that are NaN or infinite on examples."),
        "example_values?": int,
    },
    "How far an output of the source moves over so many calls, each compared with the first one of",
    "its shape.",
)
_QUANTIZATION = (
    {
        "verdict": Verdict,
        "reason": str,
        "limits": (_LIMITS, "Those of the config that it is held to."),
        "floor": (float, "The SQNR in dB that it must reach, whatever the limits."),
        "examples": ([_POOLED], "On the examples, which decide."),
        "generated": (
            [_POOLED],
            "On generated inputs, which never decide alone.",
        ),
    },
    "The verdict on what the config quantizes, the quantized program against the float one.",
)
_REFERENCE = (
    {
        "verdict": Verdict,
        "reason": str,
        "compared": (
            list[str],
            "Its references: `reference('encode')` of the exporter, which runs PyTorch in eager",
            "mode, or files of recorded outputs.",
        ),
        "calls": (int, "The number of calls that were compared."),
        "max_abs": (Figure, "The greatest absolute error of all outputs."),
        "of_limit": (Figure, "The greatest ratio of an error to its limit."),
        "limits?": (_LIMITS, "Those that the config sets."),
        "limits_from?": (list[str], "The paths in the config that set them."),
        "skipped": (
            [SKIP],
            "The input sets and sequences that were not compared.",
        ),
    },
    "The verdict on an export, the exported program against its references.",
)
_CALL = (
    {
        "origin": str,
        "outputs": list[OutputErrorRecord],
        "step?": (int, "Counts the calls of the sequence from 1; 0 without state."),
        "sequence?": str,
        "generated?": bool,
        "case?": (str, "The kind of a generated input set that is not random."),
        "limits?": (
            list[dict[str, float | bool]],
            "The figures of each output that has any.",
        ),
    },
    "One call on the input set `origin`, which was `generated` or is real.",
)
# The worst figures over all outputs of all calls.
_FIGURES: Mapping[str, Any] = {
    "max_abs": Figure,
    "mean_abs": Figure,
    "p999_abs": Figure,
    "relative": Figure,
    "sqnr_db": Figure,
    "cosine": Figure,
    "agreement": Figure,
}
_HELD = (
    {**_FIGURES, "limits": _LIMITS, "limits_reason": str},
    "Against the quantized program of the method: the limits for outputs,",
    "held to, the widest of all calls but large ones, the reason for them, and the worst figures.",
)
# The outcome of one method, except for the fields that features add. The worst figures are over all
# outputs of the calls on examples or, if there are none, of the calls on generated inputs.
METHOD_OUTLINE: Mapping[str, Any] = {
    **_FIGURES,
    "method": str,
    "kind": (str, "`program`, `constant` or `unknown`."),
    "ok": bool,
    "verdict": (
        Verdict,
        "The verdict on the lowering: the package against its source program.",
    ),
    "verdict_reason?": (str, "Why it is not `passed`."),
    "quantization?": _QUANTIZATION,
    "reference?": _REFERENCE,
    "source_is_quantized?": (
        bool,
        "The source itself is quantized: nothing is compared with a float program.",
    ),
    "random?": (str, "How a method that is declared random was judged."),
    "movement?": (
        [_MOVEMENT],
        "How far its source's outputs move, by output.",
    ),
    "examples?": (int, "The number of calls on examples."),
    "on_generated?": (
        _FIGURES,
        "The worst figures on generated inputs, if there are examples too.",
    ),
    "state": list[str],
    "outputs?": (list[str], "The names of its outputs."),
    "limits": (
        _LIMITS,
        "What outputs were held to: the widest of all calls but large ones.",
    ),
    "limits_from?": (
        str,
        "The origin of these limits: `config`, a dtype, or `quantized`.",
    ),
    "limits_reason?": str,
    "quantized?": _HELD,
    "left_out?": (
        list[str],
        "Input sets that validate.budget left no time for, or that were not requested.",
    ),
    "runs": [_CALL],
    "skipped": [SKIP],
    "failures": [_FAILURE],
    "not_run": (str, "Why this machine can't run it."),
    "metrics?": dict[str, dict[str, Any]],
}
