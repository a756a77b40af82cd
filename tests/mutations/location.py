"""Whether validation traces a failure to the place of the damage. Imports no torch.

Records of culprits name operators of the program (`aten.linear.default`), damages name those of the
package (`aten::addmm.out`), which lowering may have made from other operators.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]

# Kernels, with the operators of a program that they are made from.
_MADE_OF = {
    "addmm": {"linear", "addmm"},
    "mm": {"linear", "matmul", "mm", "numpy_T", "t"},
    "permute_copy": {"linear", "matmul", "mm", "permute", "t", "transpose", "numpy_T"},
    "_softmax": {"softmax"},
    "index_put": {"index_copy_", "index_copy"},
    "convolution": {"conv2d"},
    "sub": {"sub", "rsub"},
    "div": {"div", "true_divide"},
    "copy_": {"add_", "index_copy_", "copy_", "getitem"},
    "select_copy": {"map_impl", "select"},
    "alias_copy": {"alias", "view", "detach"},
}


def base(operator: str) -> str:
    """Return the base name of an operator: `add` for `aten::add.out` and `aten.add.Tensor`."""
    parts = re.split(r"::|\.", operator)
    return parts[1] if len(parts) > 1 else operator


def names(kernel: str) -> set[str]:
    """Return the names that a program may use for a package's `kernel`."""
    own = base(kernel)
    plain = own.removesuffix("_copy").strip("_")
    return {own, plain, f"{plain}_", *_MADE_OF.get(own, ())}


def unplaced(verdict: Json) -> list[str]:
    """Return the methods that the damage made fail without a correctly placed culprit."""
    damaged = {c["method"] for c in verdict["culprits"] if c["kind"]}  # others share their state
    failed = [n for n, state in verdict["methods"].items() if state == "failed" and n in damaged]
    return [name for name in failed if not _located(name, verdict["culprits"], verdict["found"])]


def _located(method: str, wanted: Sequence[Json], found: Sequence[Json]) -> bool:
    return any(
        is_at(culprit, record)
        for culprit in wanted
        for record in found
        if culprit["method"] == record["method"] == method
    )


def is_at(wanted: Json, found: Json) -> bool:
    """Return whether a record has the expected kind, and the expected delegate or operator."""
    if found["kind"] not in wanted["kind"].split("|"):
        return False
    if wanted["delegate"] >= 0:
        return (found["backend"], found["partition"]) == (wanted["name"], wanted["delegate"])
    if wanted["instruction"] >= 0 and "::" in wanted["name"] and wanted["kind"] == "operator":
        return base(found["operator"]) in names(wanted["name"]) or wanted["name"] in found["what"]
    return True
