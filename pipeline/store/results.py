"""The forms of action results: the fields of each kind, and their types.

A new field of a result is declared here. `agreement.py` says what fields must agree with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

from pipeline.store.compiled import CompiledUnit, Estimate, TaggedBlob
from pipeline.store.digest import Digest
from pipeline.store.forms import Constant, Count, FileName, MethodName, Piece, SystemName
from pipeline.store.quantized import QuantizedMethod
from pipeline.store.states import Allowed, Verdict


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
    named: list[TaggedBlob] | None
    estimate: NotRequired[Estimate]


class _Preprocess(TypedDict):
    results: list[_Preprocessed]


class _Link(TypedDict):
    files: dict[FileName, Digest]
    joined: NotRequired[dict[FileName, list[Piece]]]


class _Measure(TypedDict):
    record: Digest
    blobs: list[Digest]


class _Verdict(TypedDict):
    ok: Literal[True]  # no other is kept
    verdict: Literal["not run", "not judged", "passed"]
    allow: list[Allowed]
    methods: dict[str, Verdict]  # of those that have not passed
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
    "quantize": QuantizedMethod,
    "compile": CompiledUnit,
    "preprocess": _Preprocess,
    "refit": _Refit,
    "relink": _Relink,
    "family": _Family,
    "family-files": _FamilyFiles,
    "link": _Link,
    "measure": _Measure,
    "validate": _Validate,
}
