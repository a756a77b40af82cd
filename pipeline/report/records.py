"""The records that a build leaves: their readers, and the shape of `report.json`.

Renderers read nothing but `report.json`, so a page can be rendered again without measuring again.
Parts that not every package has, or that an older build did not write, may be missing; further keys
may be there. `python -m pte_pipeline.report.schema` prints these shapes as a JSON Schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

# Python 3.11's own TypedDict does not tell pydantic all that it needs for a schema.
from typing_extensions import NotRequired, TypedDict  # noqa: UP035

from pipeline.report.package_records import (
    ContentsRecord,
    ContractRecord,
    ManifestRecord,
)
from pipeline.report.verdicts import Verdict
from pipeline.store.compiled import (
    Delegation,
    LoweringWarning,
    NarrowedSize,
    OperatorLibrary,
)
from pipeline.store.files import CONTENTS, CONTRACT, MANIFEST, REPORT, read_record
from pipeline.store.forms import fits
from pipeline.store.quantized import Quantization
from pipeline.store.workspace import Workspace

FORMAT = 2  # of report.json
# A higher SQNR is float32's own rounding, and differs from one processor to the next.
MOST_SQNR = 120.0  # dB

# What is wrong: an operator or a delegate computes something else, the package is not what its
# build gives, state is not kept, or inputs or outputs have another order or other names.
CulpritKind = Literal["operator", "delegate", "state"]

# Strict JSON has no infinities; None where a figure is undefined.
Figure = float | Literal["inf", "-inf", "nan"] | None


def read_manifest(workspace: Workspace, package: str) -> dict[str, Any] | None:
    """Read the manifest of a package in `build/`; None where there is none that can be read."""
    return read_fitting(workspace.package(package) / MANIFEST)


def read_fitting(path: Path) -> dict[str, Any] | None:
    """Read the record of a package that is in a file; None where there is none, or it has another
    form than the records of this name."""
    record = read_record(path)
    if fits_name(path.name, record):
        return record
    return None


def read_drops(workspace: Workspace, package: str) -> dict[str, Sequence[float]]:
    """Return the methods of which less is delegated than in the build before: the share then and
    now, as installing the package recorded it."""
    return dict(workspace.state(package).get("link", {}).get("drops", {}))


def fits_name(name: str, record: Any) -> bool:
    """Tell whether a value has the form of the records of this name."""
    return fits(record, FORMS[name], open_fields=True)


def delegated_share(methods: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the share of methods' nodes that do not run on portable kernels; None without nodes.

    Args:
        methods: delegation records.
    """
    nodes = inside = 0
    for counts in methods:
        kernels = counts.get(
            "kernels", {}
        ).values()  # backends' own, which count as delegated
        nodes += counts["nodes"]
        inside += counts["delegated_nodes"] + sum(
            sum(calls.values()) for calls in kernels
        )
    if nodes:
        return inside / nodes
    return None


def in_order(
    report: Mapping[str, Any], by_method: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what a report has by method in the order of its methods."""
    order = {method["method"]: place for place, method in enumerate(report["methods"])}
    entries = (by_method or {}).items()
    return dict(
        sorted(entries, key=lambda entry: (order.get(entry[0], len(order)), entry[0]))
    )


def name_kernels(operators: Iterable[str]) -> str:
    """Return what the kernels of operators that no delegate took are called: portable ones are
    those of ATen, of dim orders and of sizes alone."""
    ours = ("aten.", "dim_order_ops.")
    if all(o.startswith(ours) or "." not in o for o in operators):
        return "portable kernels"
    return "kernels"


def is_unchecked(gate: Mapping[str, Any]) -> bool:
    """Return whether a gate holds only since nothing was there to hold it to."""
    return bool(gate["ok"] and gate["figure"] is None)


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
    the method was not asked for.
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


GateUnit = Literal["share", "bytes", "times", "dB", "calls", "cycles", "needs"]


GateExemption = Literal["not run", "no partitioners", "no baseline"]


class GateRecord(TypedDict):
    """A limit that the config sets on a package or on a method, and the figure it limits.

    `method` is None for one of the package. `figure` and `limit` are in `unit`; `figure` is None
    where it is not known; the limit of allow_portable_ops is 0, and its figure the number of calls
    that are not allowed; that of runs_on is 0, and its figure the number of needs that runtimes do
    not meet. `sentence` says what is wrong, or why it was not checked; else it is empty. `place` is
    its line in the config, `file:line`, or empty for one by default. `left_alone` says why it
    neither holds nor fails: the method was not run, has no partitioners on purpose, or there is no
    baseline yet.
    """

    gate: str
    method: str | None
    unit: NotRequired[GateUnit]
    figure: float | None
    limit: float
    ok: bool
    sentence: str
    place: NotRequired[str]
    left_alone: NotRequired[GateExemption]


class SuiteRecord(TypedDict):
    """A method in the bundled program: the origin of each case's inputs, in the order of their
    numbers; the tolerances for the runtime; the state for whose initial values the method is loaded
    anew for each case."""

    cases: list[str]
    rtol: float
    atol: float
    state: list[str]
    left_out: list[SkipRecord]


class BundleRecord(TypedDict):
    """The bundled program, where one was wanted and the package is its source."""

    file: str
    size: int
    digest: str
    methods: dict[str, SuiteRecord]


class CommonStateRecord(TypedDict):
    """The buffers that several methods use by one name and at least one changes, each with its
    methods; `shared` says whether they are one in the package, or each method has a copy."""

    shared: bool
    buffers: dict[str, list[str]]


class FamilyRecord(TypedDict):
    """The family of a package; `packages` has, by package and name, digest and size in bytes of the
    files of those that share weights, this package among them."""

    name: str
    base: str | None
    packages: dict[str, dict[str, tuple[str, int]]]


class ReportRecord(TypedDict):
    """The record of a validated package.

    `verdict` is the worst of its methods' lowerings and quantizations, its gates and its files;
    `ok` is false where it failed; `allow` are other verdicts that the config accepts;
    `failures` has a sentence for each failure, those of methods first; `files` are digests and
    `sizes` bytes by name; `settings` is how it was validated; `places` says where the config sets a
    value, `file:line` by its path there (`methods.encode`, `validate.atol`); `sources` are
    digests of the files of the workspace whose lines pages quote, as they were exported from and as
    the config was read; `left_float` counts operators that a quantized method's control flow keeps
    in floating point; `quantization` has the facts of quantized methods; `portable` are the methods
    for which the config names no partitioner; `narrowed` has, by method, sizes whose range lowering
    narrowed, `warnings` those of its lowering, and `facts` those of features by name;
    `operators` are the libraries of operators beside ATen's that the methods call;
    `seconds` is each method's running time in the package over all calls; `only` names the methods
    that were asked for, where not all were; `processor` is what measured latencies.
    """

    package: str
    ok: bool
    verdict: Verdict
    allow: NotRequired[list[str]]
    failures: list[str]
    settings: dict[str, Any]
    methods: list[MethodRecord]
    format: NotRequired[Literal[2]]
    model: NotRequired[str]
    target: NotRequired[str]
    files: NotRequired[dict[str, str]]
    sizes: NotRequired[dict[str, int]]
    places: NotRequired[dict[str, str]]
    sources: NotRequired[dict[str, str]]
    delegation: NotRequired[dict[str, Delegation]]
    left_float: NotRequired[dict[str, int]]
    quantization: NotRequired[dict[str, Quantization]]
    portable: NotRequired[list[str]]
    narrowed: NotRequired[dict[str, list[NarrowedSize]]]
    warnings: NotRequired[dict[str, list[LoweringWarning]]]
    facts: NotRequired[dict[str, dict[str, Any]]]
    operators: NotRequired[list[OperatorLibrary]]
    contents: NotRequired[ContentsRecord | None]
    gates: NotRequired[list[GateRecord]]
    baseline: NotRequired[dict[str, Any] | None]
    bundle: NotRequired[BundleRecord]
    family: NotRequired[FamilyRecord]
    common_state: NotRequired[CommonStateRecord]
    only: NotRequired[list[str]]
    processor: NotRequired[str]
    worst: NotRequired[dict[str, Figure]]
    seconds: NotRequired[dict[str, float]]


FORMS = {
    MANIFEST: ManifestRecord,
    CONTENTS: ContentsRecord,
    CONTRACT: ContractRecord,
    REPORT: ReportRecord,
}
