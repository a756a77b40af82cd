"""The shape of `report.json`: what is known of a package once it was validated.

Renderers read nothing else, so a page can be rendered again without measuring again. Parts that not
every package has, or that an older build did not write, may be missing; so may further keys be
there. `python -m pipeline.config.schema report` prints these shapes as a JSON Schema.
"""

from __future__ import annotations

from typing import Any, Literal

# Python 3.11's own TypedDict does not tell pydantic all that it needs for a schema.
from typing_extensions import NotRequired, TypedDict  # noqa: UP035

FORMAT = 1

SegmentKind = Literal["program", "constants", "delegate", "named_data", "mutable", "padding"]

# An operator or a delegate computes something else, the package is not what its build gives, the
# state is not kept, or what is there stands in another place or under another name.
CulpritKind = Literal["operator", "delegate", "package", "state", "order"]

# Strict JSON has no infinities; None where a figure is undefined.
Figure = float | Literal["inf", "-inf", "nan"] | None


class OutputErrorRecord(TypedDict):
    """How far one output of one call is from that of the source program: greatest, mean and 99.9th
    percentile of the absolute error; the error relative to the signal; the signal to noise ratio in
    dB; cosine; share of rows whose greatest value stands at the same place; places where both are
    the same infinity or NaN, and those where one alone is; a mismatch of kind, dtype or shape."""

    max_abs: Figure
    mean_abs: Figure
    p999_abs: NotRequired[Figure]
    relative: NotRequired[Figure]
    sqnr_db: Figure
    cosine: NotRequired[Figure]
    agreement: NotRequired[Figure]
    nonfinite: NotRequired[int]
    disagreeing: NotRequired[int]
    mismatch: NotRequired[str | None]


class RunRecord(TypedDict):
    """One call on the input set `origin`, which was `generated` or is real; a generated one that is
    not random says what `case` it is. In a method with state, `step` counts the calls of the
    sequence from 1; otherwise it is 0."""

    origin: str
    outputs: list[OutputErrorRecord]
    step: NotRequired[int]
    sequence: NotRequired[str]
    generated: NotRequired[bool]
    case: NotRequired[str]


class SkipRecord(TypedDict):
    """A generated input set on which the source program itself fails, and why."""

    origin: str
    reason: str


class FailureRecord(TypedDict):
    """`inputs` and `output` are empty where the failure is of the whole method."""

    method: str
    inputs: str
    output: str
    what: str


class CulpritRecord(TypedDict):
    """Where a method goes wrong: an operator, with its module path and `code  # file:line, in
    function` of the model's source as it is now, and the delegate that runs it, if one does; or
    that which is wrong instead of an operator. `what` is a sentence."""

    operator: str
    module: str
    line: str
    backend: str | None
    partition: int | None
    kind: CulpritKind
    what: str
    error: OutputErrorRecord | None


class SpreadRecord(TypedDict):
    """Milliseconds of wall time: the median of so many runs, and their quartiles."""

    median: float
    low: float
    high: float
    runs: int


class LatencyRecord(TypedDict):
    """Of the host, not of a device: loading, the first call, further calls, the same calls of the
    source program in eager mode, and `steady_ms` by `source_ms`."""

    load_ms: SpreadRecord
    first_ms: float
    steady_ms: SpreadRecord
    source_ms: SpreadRecord
    ratio: float


class MethodRecord(TypedDict):
    """What became of one method: the worst figures over all its calls, each of the output that is
    worst by it, then the calls themselves. `kind` is `program`, `constant` or `unknown`; `limits`
    is what its outputs were held to; `not_run` says why this machine can't run it."""

    method: str
    kind: str
    ok: bool
    state: list[str]
    limits: dict[str, float | None]
    max_abs: Figure
    mean_abs: Figure
    p999_abs: Figure
    relative: Figure
    sqnr_db: Figure
    cosine: Figure
    agreement: Figure
    runs: list[RunRecord]
    skipped: list[SkipRecord]
    failures: list[FailureRecord]
    not_run: str
    culprits: NotRequired[list[CulpritRecord]]
    culprit_notes: NotRequired[list[str]]
    latency: NotRequired[LatencyRecord | None]


class BackendCounts(TypedDict):
    """What one backend's delegates run: calls of operators, different operators, delegates."""

    nodes: int
    operators: int
    partitions: int


class LeftRecord(TypedDict):
    """A call of an operator that no delegate took: its line and module, and why, where known."""

    operator: str
    line: NotRequired[str]
    module: NotRequired[str]
    reason: NotRequired[str]


class CrossingRecord(TypedDict):
    """Tensors that cross borders of delegates in one call, and their bytes at upper bounds."""

    tensors: int
    bytes: int


class BorderRecord(TypedDict):
    """What goes into delegates and out of them; `copies` are explicit changes of layout or dtype
    left at borders."""

    into: CrossingRecord
    out_of: CrossingRecord
    copies: int


class StretchRecord(TypedDict):
    """A stretch of a lowered method in the order of its graph, bodies of control flow where they
    are called: one delegate of `backend`, or, where that is None, calls between delegates."""

    backend: str | None
    nodes: int
    operators: dict[str, int]


class DelegationRecord(TypedDict):
    """Counts of operator calls, over control flow too; `undelegated` maps operators to calls."""

    nodes: int
    delegated_nodes: int
    operators: int
    delegated_operators: int
    partitions: dict[str, int]
    undelegated: dict[str, int]
    kernels: NotRequired[dict[str, dict[str, int]]]
    backends: NotRequired[dict[str, BackendCounts]]
    subgraphs: NotRequired[int]
    left: NotRequired[list[LeftRecord]]
    border: NotRequired[BorderRecord]
    stretches: NotRequired[list[StretchRecord]]


class SegmentRecord(TypedDict):
    """A stretch of a file; those of a file cover it, in order, from its first byte to its last.

    `kind` is program (the flatbuffer with its header: plans, and where everything stands),
    constants (tensors of portable operators), delegate (a payload), named_data (what delegates or
    a `.ptd` file hold by name), mutable (initial values of buffers) or padding. `name` is the
    qualified name of a tensor of named data, else its key. `backend` is that of a payload.
    `methods` are those that use it; empty where nothing tells. `digest` is empty for padding.
    """

    file: str
    kind: SegmentKind
    name: str
    offset: int
    size: int
    digest: str
    methods: list[str]
    backend: str | None


class DelegateBlob(TypedDict):
    """`index` is the delegate's place in its method, `size` that of its payload in bytes."""

    backend: str
    index: int
    size: int
    digest: str


class ArenaRecord(TypedDict):
    """A block of memory that the runtime gives to a method's tensors, in bytes."""

    arena: int
    size: int


class MethodContents(TypedDict):
    """`constants` are bytes of tensors of portable operators, `delegated` bytes of payloads and of
    delegates' named data; what methods share counts for each."""

    instructions: int
    delegates: list[DelegateBlob]
    planned_memory: list[ArenaRecord]
    constants: int
    delegated: int


class TensorRecord(TypedDict):
    """`name` is empty where the bytes are none that the programs hold; `key` is that of named data.

    dtype, shape and `size` are as stored, but for `where` delegate: a tensor that went into a
    payload, whose form there nobody knows, has those of the program. Named data whose bytes are
    a weight in another layout have the program's dtype and shape.
    """

    name: str
    key: str
    dtype: str
    shape: list[int]
    size: int
    file: str
    where: str
    methods: list[str]


class SharedRecord(TypedDict):
    """What several methods use and the package holds once."""

    what: str
    size: int
    methods: list[str]


class TwiceRecord(TypedDict):
    """What stands at several places: `size` bytes at each of `times`. `advice` says how to be rid
    of it."""

    what: str
    size: int
    times: int
    where: list[str]
    advice: str


class ContentsRecord(TypedDict):
    """What is in a package: a function of the bytes of its files, and of the names of constants in
    the programs. `tensors`, `shared` and `twice` have the largest first."""

    size: int
    segments: list[SegmentRecord]
    methods: dict[str, MethodContents]
    tensors: list[TensorRecord]
    shared: list[SharedRecord]
    twice: list[TwiceRecord]


class GateRecord(TypedDict):
    """A limit that the config sets, of a method or of the package, and what stands against it.
    `place` is its line in the config, `file:line`, or empty for one by default."""

    gate: str
    method: str | None
    figure: float
    limit: float
    ok: bool
    sentence: str
    place: NotRequired[str]


class LeftOutRecord(TypedDict):
    """A case that is not in the bundled program, and why; `origin` is empty for all of a method."""

    origin: str
    reason: str


class SuiteRecord(TypedDict):
    """A method in the bundled program: where the inputs of each case are from, in the order of
    their numbers; the tolerances to give the runtime; the state that a case wants in its initial
    values, so that the method is loaded anew for it."""

    cases: list[str]
    rtol: float
    atol: float
    state: list[str]
    left_out: list[LeftOutRecord]


class BundleRecord(TypedDict):
    """`bundle` in `report.json`, where one was wanted and the package is what its source is."""

    file: str
    size: int
    digest: str
    methods: dict[str, SuiteRecord]


class ReportRecord(TypedDict):
    """All of it. `failures` has a sentence for each failure, those of methods first; `files` are
    digests and `sizes` bytes by name; `settings` is how it was validated; `places` says where the
    config sets a value, `file:line` by its path there (`methods.encode`, `validate.atol`);
    `left_float` counts operators that a quantized method's control flow keeps in floating point;
    `seconds` is each method's running time in the package over all calls."""

    package: str
    ok: bool
    failures: list[str]
    settings: dict[str, Any]
    methods: list[MethodRecord]
    format: NotRequired[Literal[1]]
    model: NotRequired[str]
    target: NotRequired[str]
    files: NotRequired[dict[str, str]]
    sizes: NotRequired[dict[str, int]]
    places: NotRequired[dict[str, str]]
    delegation: NotRequired[dict[str, DelegationRecord]]
    left_float: NotRequired[dict[str, int]]
    contents: NotRequired[ContentsRecord | None]
    gates: NotRequired[list[GateRecord]]
    baseline: NotRequired[dict[str, Any] | None]
    bundle: NotRequired[BundleRecord]
    worst: NotRequired[dict[str, Figure]]
    seconds: NotRequired[dict[str, float]]
