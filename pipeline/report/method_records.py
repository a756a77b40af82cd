"""The shapes of what `report.json` says of a method: its calls, verdicts, failures and figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

# Python 3.11's own TypedDict does not tell pydantic all that it needs for a schema.
from typing_extensions import NotRequired, TypedDict  # noqa: UP035

from pipeline.report.verdicts import Verdict

# Strict JSON has no infinities; None where a figure is undefined.
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


class SkipRecord(TypedDict):
    """A generated input set, or a sequence of calls, that was not run, or a case that is not in the
    bundled program, and why; `origin` is empty for all of a method."""

    origin: str
    reason: str


# What else than input sets can be left out of a method: all of it, or timing it, for want of time;
# and all of one that was not asked for.
ALL, LATENCY, UNASKED = "all", "latency", "not requested"
# Whether the package lacks the method, what the method declares, how far an output is from that of
# the program that it was quantized to, how far that one is from the float program, that the source
# itself is no measure of anything, or how far the exported program is from its reference; anything
# else is "".
FailureSubject = Literal[
    "", "lacking", "declared", "quantized", "quantization", "source", "reference"
]


class FailureRecord(TypedDict):
    """A failure of a method; `inputs` and `output` are empty where the whole method failed.
    `of_limit` is the ratio of the error to its limit, where one is exceeded."""

    method: str
    inputs: str
    output: str
    what: str
    about: NotRequired[FailureSubject]
    of_limit: NotRequired[Figure]


class PooledRecord(TypedDict):
    """What quantization does to one output, over all its values in several calls: the greatest
    absolute error, signal to noise ratio in dB, cosine, and the share of rows whose greatest value
    has the same place, `agreeing` of `rows`."""

    output: str
    calls: int
    values: int
    max_abs: Figure
    sqnr_db: Figure
    cosine: Figure
    agreement: Figure
    agreeing: int
    rows: int


class MovementRecord(TypedDict):
    """How far an output of the source moves over so many calls, each compared with the first one of
    its shape: the greatest and the mean distance, and the share of elements that moved.

    `judged` is false where no comparison of it could have failed, with the `reason`. `fixed` is
    what determines an output that no input's value reaches: `nothing` but the program, or `sizes`
    too; `redrawn`, that it moves on other inputs than the calls had. `nonfinite` counts the values
    that are NaN or infinite on examples, of `example_values`.
    """

    output: str
    calls: int
    largest: Figure
    typical: Figure
    share: Figure
    judged: bool
    reason: NotRequired[str]
    fixed: NotRequired[Literal["nothing", "sizes", "values"]]
    redrawn: NotRequired[bool]
    nonfinite: NotRequired[int]
    example_values: NotRequired[int]


class QuantizationRecord(TypedDict):
    """The verdict on a quantization, the quantized program against the float one: its reason, the
    limits of the config that it is held to, the `floor` that its SQNR in dB always has, and the
    figures of each output on the examples, which decide, and on generated inputs, which never do
    alone."""

    verdict: Verdict
    reason: str
    limits: dict[str, float | None]
    floor: float
    examples: list[PooledRecord]
    generated: list[PooledRecord]


class ReferenceRecord(TypedDict):
    """The verdict on an export, the exported program against its references, and its reason.

    `compared` names them: `reference('encode')` of the exporter, which runs PyTorch in eager mode,
    or files of recorded outputs. `calls` were compared; `max_abs` is the greatest absolute error of
    all outputs, `of_limit` the greatest ratio of an error to its limit; `limits` are those that the
    config sets, at the paths in it that `limits_from` has; `skipped` are input sets and sequences
    that were not compared.
    """

    verdict: Verdict
    reason: str
    compared: list[str]
    calls: int
    max_abs: Figure
    of_limit: Figure
    limits: NotRequired[dict[str, float | None]]
    limits_from: NotRequired[list[str]]
    skipped: list[SkipRecord]


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
_LIMITS = dict[str, float | None]
_HELD = (
    {**_FIGURES, "limits": _LIMITS, "limits_reason": str},
    "Against the quantized program of the method: the limits for outputs,",
    "held to, the widest of all calls but large ones, the reason for them, and the worst figures.",
)
# The outcome of one method, but for what features add. The worst figures are those over all outputs
# of the calls on examples; without any, of the calls on generated inputs.
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
    "quantization?": (QuantizationRecord, "The verdict on what the config quantizes."),
    "reference?": (
        ReferenceRecord,
        "The verdict on the export of a method with a reference.",
    ),
    "source_is_quantized?": (
        bool,
        "The source itself is quantized: nothing is compared with a float program.",
    ),
    "random?": (str, "How a method that is declared random was judged."),
    "movement?": (
        list[MovementRecord],
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
    "skipped": list[SkipRecord],
    "failures": list[FailureRecord],
    "not_run": (str, "Why this machine can't run it."),
    "metrics?": dict[str, dict[str, Any]],
}
