"""The forms of action results: the fields of each kind, and their types.

A new field of a result is declared here. `agreement.py` says what fields must agree with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

from pipeline.store.digest import Digest
from pipeline.store.forms import (
    Constant,
    Count,
    EntryName,
    FileName,
    FilePath,
    MethodName,
    ShortBytes,
    Size,
    SystemName,
)

# As in pipeline/report/verdicts.py, which this room does not know.
VerdictWord = Literal["failed", "not run", "not judged", "passed"]
AllowedWord = Literal["not-judged", "not-run"]


class _Empty(TypedDict):
    pass


class _ArchiveProgram(TypedDict):
    entry: MethodName
    program: Digest
    names: Digest
    examples: Digest | None
    parts: _Empty


class _Programs(TypedDict):
    programs: list[_ArchiveProgram]


class _Outline(TypedDict):
    calls: dict[str, list[Count]]
    same: list[list[str]]
    modules: list[str]
    tensors: dict[str, str]


class _Buffer(TypedDict):
    shape: list[Count]
    dtype: str
    changed: bool


class _ProgramParts(TypedDict):
    modules: dict[str, str]
    tensors: dict[str, str]
    ranges: dict[str, Any]
    signature: str
    call: str
    wiring: str
    schema: str
    outline: _Outline
    buffers: dict[str, _Buffer]


class _Run(TypedDict):
    files: NotRequired[list[SystemName]]
    listings: NotRequired[list[SystemName]]
    links: NotRequired[list[SystemName]]
    environment: NotRequired[list[SystemName]]
    modules: NotRequired[list[SystemName]]
    distributions: NotRequired[list[SystemName]]
    made: NotRequired[list[SystemName]]
    unfollowed: NotRequired[list[SystemName]]


class _Reads(TypedDict):
    runs: list[_Run]
    last: Digest


class _ExportedMethod(TypedDict):
    name: MethodName
    program: Digest
    names: Digest
    examples: Digest | None
    examples_of_export: bool
    calibration: Digest | None
    batches: list[Digest]
    reference: Digest | None
    renamed: dict[str, Count]


class _ConstantTensor(TypedDict):
    dtype: str
    sizes: list[Count]
    strides: list[Count]
    requires_grad: bool
    data: Digest


class _TensorLeaf(TypedDict):
    tensor: _ConstantTensor


class _FloatLeaf(TypedDict):
    float: Literal["inf", "-inf", "nan"]


class _StructuredConstant(TypedDict):
    leaves: list[Constant | _TensorLeaf | _FloatLeaf]
    structure: str


class _Export(TypedDict):
    archive: Digest
    methods: list[_ExportedMethod]
    constant_methods: list[tuple[MethodName, Constant | _StructuredConstant]]
    warnings: list[str]


# In dB or as an error; strict JSON has no infinities.
_Figure = float | Literal["inf", "-inf", "nan"]


class CalibrationInputs(TypedDict):
    """The number of inputs that observers saw, and their source; `none` where nothing observes."""

    inputs: Count
    source: Literal["files", "calibration_inputs", "examples", "generated", "none"]


class QuantizedBytes(TypedDict):
    """The bytes of a method's weights, each as floats, and those of them that are quantized."""

    bytes: Count
    quantized: Count


class QuantizedCompute(TypedDict):
    """The multiplications of one call, and those of them whose factors both are quantized."""

    multiplications: Count
    quantized: Count


class LeftFloat(TypedDict):
    """A tensor that quantization left in floating point, and why."""

    name: str
    bytes: Count
    why: str


class ObserverRemark(TypedDict):
    """An observer whose range means little: it saw one value, infinities or NaN (`nonfinite` of
    them), or chose a `range` that cuts off much of what was `seen`."""

    kind: Literal["one value", "not finite", "cut off"]
    value: str
    module: str
    seen: tuple[float | None, float | None]
    range: tuple[float | None, float | None] | None
    nonfinite: Count


class Observers(TypedDict):
    """The number of observers, that of remarks about them, and the first remarks."""

    count: Count
    remarked: Count
    remarks: list[ObserverRemark]


class Quantization(TypedDict):
    """The facts of a quantized method.

    `activations` is how they are quantized: static, dynamic, both, or not at all; `conversions` the
    number of calls that quantize, dequantize or find a scale; `left_float` has the largest tensors
    left in floating point; `observers` is None for a quantizer that prepares nothing; `warnings`
    are sentences, the gravest first.
    """

    quantizer: str
    activations: list[Literal["static", "dynamic"]]
    calibration: CalibrationInputs
    weights: QuantizedBytes
    compute: QuantizedCompute
    conversions: Count
    left_float: list[LeftFloat]
    observers: Observers | None
    warnings: list[str]


class PreparedOutput(TypedDict):
    """How far an output of the prepared program is from the float one over all calls; `inputs` is
    the origin of the worst. `agrees` is None where rounding alone moves it as far."""

    output: str
    sqnr_db: _Figure
    max_abs: _Figure
    limit_db: _Figure
    agrees: bool | None
    inputs: str
    generated: bool


class PreparedDeparture(TypedDict):
    """The first operator at which the prepared program departs from the float one, and its place in
    that; the operators that were `folded` into it, each with its module; and its weight, where that
    is `shared` with others."""

    node: str
    place: Count | None
    operator: str
    module: str
    folded: list[tuple[str, str]]
    shared: str
    sqnr_db: _Figure


class Prepared(TypedDict):
    """How far the prepared program, which observes and rounds nothing, agrees with the float one on
    the inputs that were observed; the worst output is first."""

    agrees: bool | None
    calls: Count
    outputs: list[PreparedOutput]
    departure: PreparedDeparture | None


class _Quantize(TypedDict):
    program: Digest
    blobs: list[Digest]
    origins: list[dict[str, Count]]
    facts: Quantization
    prepared: Prepared | None


class _Blob(TypedDict):
    digest: Digest
    size: Size


class _NamedBlob(TypedDict):
    key: str
    blob: _Blob
    alignment: Count
    layout: tuple[Count, list[Count], list[Count]] | None


class _Object(TypedDict):
    program: _Blob
    constants: list[_Blob]
    mutable: list[_Blob]
    delegates: list[_Blob]
    external_constants: list[_Blob]
    external: dict[FileName, list[tuple[str, Count]]]
    named: list[_NamedBlob]
    named_external: dict[FileName, list[_NamedBlob]]
    keys: dict[MethodName, list[str]]


class _Crossing(TypedDict):
    tensors: Count
    bytes: Count


class _Boundary(TypedDict):
    into: _Crossing
    out_of: _Crossing
    copies: Count


class _Segment(TypedDict):
    backend: str | None
    nodes: Count
    operators: dict[str, Count]


class _Left(TypedDict):
    operator: str
    place: Count | None
    module: str
    reason: str


class _BackendCounts(TypedDict):
    nodes: Count
    operators: Count
    partitions: Count


class _Refusal(TypedDict):
    operator: str
    calls: Count
    reason: str


class _Estimate(TypedDict):
    tool: str
    clock: Count
    cycles: Count
    busy_cycles: Count
    macs: Count
    sram: Count
    dram: Count
    on_chip_flash: Count
    off_chip_flash: Count


class _DelegateEstimate(_Estimate):
    backend: str


class _Uptake(TypedDict):
    partitioner: str
    offered: Count
    taken: Count
    refusals: list[_Refusal]


class Delegation(TypedDict):
    """A `DelegationRecord` of the report, with places instead of lines."""

    nodes: Count
    delegated_nodes: Count
    operators: Count
    delegated_operators: Count
    partitions: dict[str, Count]
    undelegated: dict[str, Count]
    kernels: NotRequired[dict[str, dict[str, Count]]]
    backends: dict[str, _BackendCounts]
    subgraphs: Count
    left: list[_Left]
    boundary: _Boundary
    segments: list[_Segment]
    estimates: NotRequired[list[_DelegateEstimate]]
    partitioners: list[_Uptake]


class _Delegate(TypedDict):
    index: Count
    places: list[Count]
    outputs: list[Count | None]


class Instructions(TypedDict):
    """The instructions of a method, as `compile.emit_trace` writes them."""

    nodes: list[tuple[Count, Count, Count]]
    delegates: list[_Delegate]
    state: list[tuple[str, Count]]


class Signature(TypedDict):
    """The signature of a method, as `program.method_spec` writes it."""

    args: list[tuple[str, Any]]
    kwargs: list[tuple[str, Any]]
    outputs: Any
    changes: list[Count]


class _Tensor(TypedDict):
    names: list[str]
    dtype: str
    shape: list[Count]
    size: Count
    forms: dict[Digest, Literal[1]]


class _Constants(TypedDict):
    tensors: dict[Digest, _Tensor]
    consumed: dict[Digest, list[Count]]


class Narrowed(TypedDict):
    """A size of an input that is lowered for a smaller range than its source takes."""

    size: str
    source: tuple[Count, Count | None]
    lowered: tuple[Count, Count | None]
    operator: str
    module: str
    place: Count | None


class LoweringWarning(TypedDict):
    """A warning of a lowering, as `compile.lowering_warnings` writes it."""

    what: str
    operator: str
    module: str
    place: Count | None


class ListedName(TypedDict):
    """A name that an option of a partitioner lists, as `compile.name_lists` writes it."""

    option: str
    name: str
    found: bool
    hint: str


class _OperatorLibrary(TypedDict):
    """A library of operators beside ATen's that a method calls outside of delegates: its name, the
    digest of its files or the version of what is installed, and the operators, with those of which
    ExecuTorch's runtime had kernels when it was compiled."""

    name: str
    digest: NotRequired[Digest]
    version: NotRequired[str]
    operators: list[str]
    kernels: list[str]


class _CompiledMethod(TypedDict):
    delegation: Delegation
    signature: Signature
    instructions: Instructions
    debug_handles: list[tuple[Count, Count]]
    left_float: Count
    quantization: Quantization | None
    narrowed: list[Narrowed]
    listed: list[ListedName]
    warnings: list[LoweringWarning]
    operators: list[_OperatorLibrary]
    constants: _Constants


class _Compile(TypedDict):
    object: _Object
    methods: dict[MethodName, _CompiledMethod]
    etrecord: dict[EntryName, _Blob]
    blobs: list[Digest]


class _Guard(TypedDict):
    view: dict[str, Any]
    digest: Digest
    where: str


class _Recipe(TypedDict):
    steps: list[dict[str, Any]]
    guards: list[_Guard]
    blobs: dict[Digest, list[Count | None]]
    described: dict[Digest, list[dict[str, Any] | None]]


class _Refit(TypedDict):
    base: Digest
    proven: bool
    why: str
    misses: Count
    recipe: _Recipe | None


# Of a file: a blob, or bytes between blobs.
Piece = tuple[Literal["blob"], Digest] | tuple[Literal["bytes"], ShortBytes]


class _Relink(TypedDict):
    compiles: dict[str, Digest]
    pieces: dict[str, list[Piece]]


class _FamilyFiles(TypedDict):
    files: dict[FileName, list[Piece]]


class _Family(_FamilyFiles):
    keys: dict[str, tuple[Digest, FileName]]
    constants: dict[Digest, FileName]


class _Preprocessed(TypedDict):
    handles: list[Count]
    processed_bytes: Digest
    debug_handles: list[tuple[Count | str, list[Count]]] | None
    named: list[tuple[str | None, _NamedBlob]] | None
    estimate: NotRequired[_Estimate]


class _Preprocess(TypedDict):
    results: list[_Preprocessed]


class _Link(TypedDict):
    files: dict[FileName, Digest]
    joined: NotRequired[dict[FileName, list[Piece]]]


class _Measure(TypedDict):
    record: Digest
    blobs: list[Digest]


class _Installed(TypedDict):
    action: Digest
    files: dict[FilePath, Digest]
    ok: NotRequired[bool]
    verdict: NotRequired[VerdictWord]
    allow: NotRequired[list[AllowedWord]]
    methods: NotRequired[dict[str, VerdictWord]]
    sound: NotRequired[bool]
    complete: NotRequired[bool]
    only: NotRequired[list[str]]
    no_baseline: NotRequired[list[str]]
    measured: NotRequired[Digest]
    unsigned: NotRequired[bool]
    drops: NotRequired[dict[MethodName, tuple[float, float]]]
    key: NotRequired[dict[str, Any]]  # of a validation that the store does not hold


class PackageState(TypedDict):
    """The record of what the last build of a package left in `build/`; `exporter` is the content of
    the exporter that last ran for it."""

    exporter: NotRequired[Digest]
    quantize: NotRequired[dict[str, Digest]]
    compile: NotRequired[dict[str, Digest]]
    link: NotRequired[_Installed]
    validate: NotRequired[_Installed]
    attest: NotRequired[_Installed]


class _Verdict(TypedDict):
    ok: Literal[True]  # no other is kept
    verdict: Literal["not run", "not judged", "passed"]
    allow: list[AllowedWord]
    methods: dict[str, VerdictWord]  # of those that have not passed
    sound: Literal[True]
    complete: Literal[True]
    only: NotRequired[list[str]]  # the methods that were asked for, where not all were
    no_baseline: NotRequired[list[str]]  # the gates that had none to compare with
    measured: Digest


class _Validate(TypedDict):
    files: dict[FileName, Digest]
    facts: _Verdict


FORMS: Mapping[str, type] = {
    "programs": _Programs,
    "program": _ProgramParts,
    "reads": _Reads,
    "export": _Export,
    "quantize": _Quantize,
    "compile": _Compile,
    "preprocess": _Preprocess,
    "refit": _Refit,
    "relink": _Relink,
    "family": _Family,
    "family-files": _FamilyFiles,
    "link": _Link,
    "measure": _Measure,
    "validate": _Validate,
}
