"""The shapes of what `report.json` says of a method: its calls, verdicts, failures and figures."""

from __future__ import annotations

from typing import Any, Literal

# Python 3.11's own TypedDict does not tell pydantic all that it needs for a schema.
from typing_extensions import NotRequired, TypedDict  # noqa: UP035

from pipeline.report.verdicts import Verdict

# What is wrong: an operator or a delegate computes something else, the package is not what its
# build gives, state is not kept, or inputs or outputs have another order or other names.
CulpritKind = Literal["operator", "delegate", "state"]
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


class CallRecord(TypedDict):
    """One call on the input set `origin`, which was `generated` or is real.

    A generated set that is not random names its `case`. In a method with state, `step` counts the
    calls of the `sequence` from 1; otherwise it is 0. `limits` has those of each output, as far as
    there are any.
    """

    origin: str
    outputs: list[OutputErrorRecord]
    step: NotRequired[int]
    sequence: NotRequired[str]
    generated: NotRequired[bool]
    case: NotRequired[str]
    limits: NotRequired[list[dict[str, float | bool]]]


class SkipRecord(TypedDict):
    """A generated input set, or a sequence of calls, that was not run, or a case that is not in the
    bundled program, and why; `origin` is empty for all of a method."""

    origin: str
    reason: str


# What else than input sets can be left out of a method: all of it, or timing it, for want of time;
# and all of one that was not asked for.
ALL, LATENCY, UNASKED = "all", "latency", "not asked for"
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


class CulpritRecord(TypedDict):
    """The cause of a failure: an operator and its delegate, if it has one, or something else.

    `line` is `file:line` of the model's source as it was exported; `kernel` is that of an operator
    outside of delegates, such as `aten::add.out`; `what` is a sentence.
    """

    operator: str
    module: str
    line: str
    backend: str | None
    partition: int | None
    kernel: NotRequired[str]
    kind: CulpritKind
    what: str
    error: OutputErrorRecord | None


class SpreadRecord(TypedDict):
    """Median and quartiles of so many runs, in milliseconds of wall time."""

    median: float
    low: float
    high: float
    runs: int


class LatencyRecord(TypedDict):
    """Latency of a method on the host: loading, the first call, further calls, and the same calls
    of the source program in eager mode; `ratio` is that of the medians of the last two."""

    load_ms: SpreadRecord
    first_ms: float
    steady_ms: SpreadRecord
    source_ms: SpreadRecord
    ratio: float


class FiguresRecord(TypedDict):
    """The worst figures over all outputs of all calls."""

    max_abs: Figure
    mean_abs: Figure
    p999_abs: Figure
    relative: Figure
    sqnr_db: Figure
    cosine: Figure
    agreement: Figure


class HeldRecord(FiguresRecord):
    """The limits that outputs are held to, the widest of all calls but large ones, the reason for
    them, and the worst figures."""

    limits: dict[str, float | None]
    limits_reason: str


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


class MethodRecord(FiguresRecord):
    """The outcome of one method, with the worst figures over all outputs of the calls on examples,
    of which there are `examples`; without any, of the calls on generated inputs. `on_generated` has
    those of generated inputs where there are both.

    `verdict` is about the lowering, the package against what was lowered, and `verdict_reason` why
    it is not `passed`; `quantization` is the verdict on what the config quantizes, and `reference`
    that on the export, of a method that has a reference;
    `source_is_quantized` tells that the source itself is quantized, so that nothing is compared
    with a float program; `random` says how a method that is declared random was judged; `movement`
    how far what it was compared with moves, by output. `kind` is `program`, `constant` or
    `unknown`; `outputs` are the names of its outputs, `limits` what these were held to, as in
    `HeldRecord`; `limits_from` is what they follow: `config`, a dtype, or `quantized`; `quantized`
    is against the program that it was quantized to on the way; `not_run` says why this machine
    can't run it; `left_out` names input sets for which validate.budget left no time, or says that
    the method was not asked for; `modules` has its calls of operators by module, equal ones with
    their `count`: what each `runs_on`, and its `line` of the source.
    """

    method: str
    kind: str
    ok: bool
    verdict: Verdict
    verdict_reason: NotRequired[str]
    quantization: NotRequired[QuantizationRecord]
    reference: NotRequired[ReferenceRecord]
    source_is_quantized: NotRequired[bool]
    random: NotRequired[str]
    movement: NotRequired[list[MovementRecord]]
    examples: NotRequired[int]
    on_generated: NotRequired[FiguresRecord]
    state: list[str]
    outputs: NotRequired[list[str]]
    limits: dict[str, float | None]
    limits_from: NotRequired[str]
    limits_reason: NotRequired[str]
    quantized: NotRequired[HeldRecord]
    left_out: NotRequired[list[str]]
    runs: list[CallRecord]
    skipped: list[SkipRecord]
    failures: list[FailureRecord]
    not_run: str
    culprits: NotRequired[list[CulpritRecord]]
    culprit_notes: NotRequired[list[str]]
    latency: NotRequired[LatencyRecord | None]
    devices: NotRequired[dict[str, dict[str, Any]]]
    metrics: NotRequired[dict[str, dict[str, Any]]]
    modules: NotRequired[list[dict[str, Any]]]
