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
    """The error of one output of one call, compared with the source program's output.

    `max_abs`, `mean_abs` and `p999_abs` are the maximum, the mean and the 99.9th percentile of the
    absolute error; `relative` is the error relative to the signal; `sqnr_db` is the
    signal-to-quantization-noise ratio in dB. `agreement` is the share of rows whose largest value
    is at the same position: `agreeing` of `rows`. `nonfinite` counts the positions where both
    values are NaN or the same infinity; `disagreeing` counts the positions where one value is NaN
    or infinite and the other is something else. `of_limit` is the maximum ratio of an error to its
    limit; above 1, the limit is exceeded. `judged` is false if the limits are too wide to mean
    anything. `mismatch` is a difference of kind, dtype or shape.
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
SKIP = {"origin": (str, "Empty if the whole method was skipped."), "reason": str}

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
            "The ratio of the error to its limit, if a limit is exceeded.",
        ),
    },
    "A failure of a method; `inputs` and `output` are empty if the whole method failed.",
)
_POOLED = (
    {
        "output": str,
        "calls": int,
        "values": int,
        "max_abs": (Figure, "The maximum absolute error."),
        "sqnr_db": (Figure, "The signal-to-quantization-noise ratio in dB."),
        "cosine": Figure,
        "agreement": (
            Figure,
            "The share of rows whose largest value is at the same position: `agreeing` of `rows`.",
        ),
        "agreeing": int,
        "rows": int,
    },
    "The effect of quantization on one output, over all its values in several calls.",
)
_MOVEMENT = (
    {
        "output": str,
        "calls": int,
        "largest": (Figure, "The maximum distance."),
        "typical": (Figure, "The mean distance."),
        "share": (Figure, "The share of elements that moved."),
        "judged": (
            bool,
            "False if no comparison of the output could have failed; `reason` says why.",
        ),
        "reason?": str,
        "fixed?": (
            Literal["nothing", "sizes", "values"],
            "What determines an output that doesn't depend on the inputs' values: `nothing` but",
            "the program, or the `sizes` too.",
        ),
        "redrawn?": (
            bool,
            "Whether the output moves on inputs other than those of the calls.",
        ),
        "nonfinite?": (
            int,
            "The number of values that are NaN or infinite on examples.",
        ),
        "example_values?": int,
    },
    "How far an output of the source moves over `calls` calls, each compared with the first call",
    "that gave the same shape.",
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
_QUANTIZATION = (
    {
        "verdict": Verdict,
        "reason": str,
        "limits": (_LIMITS, "The config's limits for the method."),
        "floor": (float, "The minimum SQNR in dB, regardless of the limits."),
        "examples": ([_POOLED], "Figures on the examples, which decide the verdict."),
        "generated": (
            [_POOLED],
            "Figures on generated inputs, which never decide the verdict alone.",
        ),
        "writers?": (
            list[str],
            "For a float method: the quantized methods that write its state, and cause the loss.",
        ),
        "figures?": (
            _FIGURES,
            "For a float method: the worst figures on examples in calls after those methods.",
        ),
    },
    "The verdict on the quantization: the quantized program against the float program. For a float",
    "method that reads state of quantized methods: the package against the float programs.",
)
_REFERENCE = (
    {
        "verdict": Verdict,
        "reason": str,
        "compared": (
            list[str],
            "The references: `the reference of 'encode'`, which is the exporter's and runs PyTorch",
            "in eager mode, or files of recorded outputs.",
        ),
        "calls": (int, "The number of calls that were compared."),
        "max_abs": (Figure, "The maximum absolute error over all outputs."),
        "of_limit": (Figure, "The maximum ratio of an error to its limit."),
        "limits?": (_LIMITS, "The limits that the config sets."),
        "limits_from?": (list[str], "The config paths of these limits."),
        "skipped": ([SKIP], "The input sets and sequences that were not compared."),
    },
    "The verdict on the export: the exported program against its references.",
)
_CALL = (
    {
        "origin": str,
        "outputs": list[OutputErrorRecord],
        "step?": (int, "The call's number in its sequence, from 1; 0 without state."),
        "sequence?": str,
        "generated?": bool,
        "case?": (str, "The kind of a generated input set that is not random."),
        "limits?": (
            list[dict[str, float | bool]],
            "The limits for each output, if any.",
        ),
    },
    "One call on the input set `origin`, which is either `generated` or an example.",
)
_HELD = (
    {**_FIGURES, "limits": _LIMITS, "limits_reason": str},
    "The comparison with the method's quantized program: the limits for outputs (the widest over",
    "all calls except large ones), the reason for them, and the worst figures.",
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
    "verdict_reason?": (str, "Why the verdict is not `passed`."),
    "quantization?": _QUANTIZATION,
    "reference?": _REFERENCE,
    "source_is_quantized?": (
        bool,
        "Whether the source itself is quantized; nothing is then compared with a float program.",
    ),
    "random?": (str, "How the method was judged, if it is declared random."),
    "movement?": (
        [_MOVEMENT],
        "How far each output of the source moves between calls.",
    ),
    "examples?": (int, "The number of calls on examples."),
    "on_generated?": (
        _FIGURES,
        "The worst figures on generated inputs, if there are examples too.",
    ),
    "state": list[str],
    "outputs?": (list[str], "The names of the outputs."),
    "limits": (
        _LIMITS,
        "The limits for outputs: the widest over all calls except large ones.",
    ),
    "limits_from?": (
        str,
        "The origin of these limits: `config`, a dtype or `quantized`.",
    ),
    "limits_reason?": str,
    "quantized?": _HELD,
    "left_out?": (
        list[str],
        "Input sets that `validate.budget` left no time for, or that were not requested.",
    ),
    "runs": [_CALL],
    "skipped": [SKIP],
    "failures": [_FAILURE],
    "not_run": (str, "Why this machine can't run the method."),
    "metrics?": dict[str, dict[str, Any]],
}
