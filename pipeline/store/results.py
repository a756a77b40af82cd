"""The outlines of action results: the fields of each kind, and their forms.

Every field of a result is declared here; `entries.py` checks that fields agree with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

from pipeline.moments import find_functions, load
from pipeline.store.digest import Digest
from pipeline.store.forms import (
    Check,
    Constant,
    Count,
    EntryName,
    FileName,
    MethodName,
    Piece,
    SystemName,
    check_of,
)
from pipeline.store.states import Allowed, Verdict

_PROGRAMS = {
    "programs": [
        {
            "entry": MethodName,
            "program": Digest,
            "names": Digest,
            "examples": (Digest, None),
            "parts": {},
        }
    ]
}
_PROGRAM_PARTS = {
    "modules": dict[str, str],
    "tensors": dict[str, str],
    "ranges": dict[str, Any],
    "signature": str,
    "call": str,
    "wiring": str,
    "schema": str,
    "outline": {
        "calls": dict[str, list[Count]],
        "same": list[list[str]],
        "modules": list[str],
        "tensors": dict[str, str],
    },
    "buffers": {str: {"shape": list[Count], "dtype": str, "changed": bool}},
    "contents?": dict[str, Digest],
}
_READS = {
    "runs": [
        {
            "files?": list[SystemName],
            "listings?": list[SystemName],
            "links?": list[SystemName],
            "environment?": list[SystemName],
            "modules?": list[SystemName],
            "distributions?": list[SystemName],
            "made?": list[SystemName],
            "unfollowed?": list[SystemName],
        }
    ],
    "last?": Digest,
}
_TENSOR_LEAF = {
    "tensor": {
        "dtype": str,
        "sizes": list[Count],
        "strides": list[Count],
        "requires_grad": bool,
        "data": Digest,
    }
}
_FLOAT_LEAF = {"float": Literal["inf", "-inf", "nan"]}
CONSTANT_METHODS = [
    [
        MethodName,
        (
            Constant,
            {"leaves": [(Constant, _TENSOR_LEAF, _FLOAT_LEAF)], "structure": str},
        ),
    ]
]
_EXPORT = {
    "archive": Digest,
    "methods": [
        {
            "name": MethodName,
            "program": Digest,
            "names": Digest,
            "examples": (Digest, None),
            "examples_of_export": bool,
            "calibration": (Digest, None),
            "batches": list[Digest],
            "reference": (Digest, None),
            "renamed": dict[str, Count],
        }
    ],
    "constant_methods": CONSTANT_METHODS,
    "warnings": list[str],
}
_LINK = {"files": {FileName: Digest}, "joined?": {FileName: list[Piece]}}
_MEASURE = {"record": Digest, "blobs": list[Digest]}
_VALIDATE = {
    "files": {FileName: Digest},
    "facts": {
        "ok": Literal[True],  # failed validations are not stored
        "verdict": Literal["not run", "not judged", "passed"],
        "allow": list[Allowed],
        "methods": dict[str, Verdict],  # only the methods that have not passed
        "sound": Literal[True],
        "complete": Literal[True],
        "only?": list[str],  # the requested methods, if not all were requested
        "no_baseline?": list[str],  # the gates without a baseline to compare with
        "measured": Digest,
    },
}


def _outline_compile() -> Any:
    from pipeline.store.compiled import COMPILED_METHOD, Blob, MethodObject

    return {
        "object": MethodObject,
        "methods": {MethodName: COMPILED_METHOD},
        "etrecord": {EntryName: Blob},  # of an ETRecord, if requested
        "blobs": list[Digest],  # all blobs of these fields, sorted
    }


def _outline_preprocess() -> Any:
    from pipeline.store.compiled import Estimate, TaggedBlob

    preprocessed = {
        "handles": list[Count],
        "processed_bytes": Digest,
        "debug_handles": (list[tuple[Count | str, list[Count]]], None),
        "named": (list[TaggedBlob], None),
        "estimate?": Estimate,
    }
    return {"results": [preprocessed]}


OUTLINES: Mapping[str, Any] = {
    "programs": _PROGRAMS,
    "program": _PROGRAM_PARTS,
    "reads": _READS,
    "export": _EXPORT,
    "link": _LINK,
    "measure": _MEASURE,
    "validate": _VALIDATE,
}


# Made when a result of the kind is first read: importing their records takes as long as importing
# all others, and a run with nothing to do reads none of them.
RECORD_OUTLINES: Mapping[str, Callable[[], Any]] = {
    "compile": _outline_compile,
    "preprocess": _outline_preprocess,
}


@cache
def check_of_kind(kind: str) -> Check:
    """Return the check for results of a kind of action; an unlisted kind accepts any result."""
    if kind in RECORD_OUTLINES:
        return check_of(RECORD_OUTLINES[kind]())
    if kind in OUTLINES:
        return check_of(OUTLINES[kind])
    outlines = find_functions("outlines")
    if kind in outlines:
        return check_of(load(outlines[kind]))
    return lambda result: True
