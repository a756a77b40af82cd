"""The records that a build leaves: their readers, and the form of `report.json`.

Renderers read only `report.json`, so a page can be rendered again without measuring again. Parts
that not every package has, or that an older build did not write, may be missing; additional keys
are allowed. `python -m pte_pipeline.report.schema` prints these forms as a JSON Schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

# Python 3.11's own TypedDict lacks information that pydantic needs for a schema.
from pipeline.moments import find_functions, load
from pipeline.report.method_records import METHOD_OUTLINE, Figure
from pipeline.report.package_records import MANIFEST_OUTLINE
from pipeline.report.verdicts import Verdict
from pipeline.store.compiled import (
    DELEGATION,
    LOWERING_WARNING,
    NARROWED_SIZE,
    OPERATOR_LIBRARY,
)
from pipeline.store.errors import listed
from pipeline.store.files import MANIFEST, REPORT, read_record
from pipeline.store.forms import Check, check_of
from pipeline.store.quantized import QUANTIZATION_FACTS
from pipeline.store.workspace import Workspace

FORMAT = 2  # of report.json
# A higher SQNR only reflects float32's own rounding, and differs between processors.
MOST_SQNR = 120.0  # dB
_MOST_NAMED = 2  # modules or reasons per operator in a sentence


def read_manifest(workspace: Workspace, package: str) -> dict[str, Any] | None:
    """Read the manifest of a package in `build/`; return None if it is missing or unreadable."""
    return read_fitting(workspace.package(package) / MANIFEST)


def read_fitting(path: Path) -> dict[str, Any] | None:
    """Read a package's record from a file; return None if it is missing or malformed.

    The file's name determines the expected form.
    """
    record = read_record(path)
    if fits_name(path.name, record):
        return record
    return None


def read_drops(workspace: Workspace, package: str) -> dict[str, Sequence[float]]:
    """Return, by method, the shares delegated in the previous build and now, if they decreased.

    Installing the package recorded them.
    """
    return dict(workspace.state(package).get("link", {}).get("drops", {}))


def fits_name(name: str, record: Any) -> bool:
    """Return whether a value has the form of the records with this name."""
    return _check_of_name(name)(record)


@cache
def _check_of_name(name: str) -> Check:
    return check_of(find_form(name), open_fields=True)


def find_form(name: str) -> Any:
    """Return the form of the records with this name, our own or a feature's, or None if unknown."""
    if name == REPORT:
        return make_report_outline()
    if name == MANIFEST:
        return MANIFEST_OUTLINE
    outline = find_functions("outlines").get(name)
    return load(outline) if outline else None


def delegated_share(methods: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the share of methods' nodes that don't run on portable kernels; None without nodes.

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
    """Return a report's facts by method, in the order of the report's methods."""
    order = {method["method"]: place for place, method in enumerate(report["methods"])}
    entries = (by_method or {}).items()
    return dict(
        sorted(entries, key=lambda entry: (order.get(entry[0], len(order)), entry[0]))
    )


def name_kernels(operators: Iterable[str]) -> str:
    """Return a name for the kernels of operators that no delegate took.

    They are "portable kernels" if all are of ATen, of dim orders or of sizes.
    """
    ours = ("aten.", "dim_order_ops.")
    if all(o.startswith(ours) or "." not in o for o in operators):
        return "portable kernels"
    return "kernels"


def describe_left(delegation: Mapping[str, Any], operator: str) -> str:
    """Describe why calls of an operator are left to portable kernels, by modules and reasons.

    Returns "" if the manifest has neither.
    """
    calls = [
        call for call in delegation.get("left", ()) if call["operator"] == operator
    ]
    modules = dict.fromkeys(call["module"] for call in calls if call["module"])
    reasons = dict.fromkeys(call["reason"] for call in calls if call["reason"])
    words = []
    if modules:
        words.append(f"in {listed(modules, _MOST_NAMED)}")
    if reasons:
        words.append(listed(reasons, _MOST_NAMED))
    return f" ({': '.join(words)})" if words else ""


def is_unchecked(gate: Mapping[str, Any]) -> bool:
    """Return whether a gate holds only because it had nothing to compare with."""
    return bool(gate["ok"] and gate["figure"] is None)


_COMMON_STATE = {
    "shared": (
        bool,
        "Whether methods share one copy of these buffers; otherwise each method has its own.",
    ),
    "buffers": (
        dict[str, list[str]],
        "By buffer, the methods that use it under the same name; at least one of them changes it.",
    ),
}
# The record of a validated package, except for the fields that features add.
_REPORT: Mapping[str, Any] = {
    "package": str,
    "ok": (bool, "Whether nothing failed."),
    "verdict": (Verdict, "The worst verdict of its methods, its gates and its files."),
    "allow?": (list[str], "Verdicts that the config accepts in addition to `passed`."),
    "failures": (list[str], "A sentence for each failure, failures of methods first."),
    "codes?": (list[str], "The code of each failure, such as `PTE502`."),
    "settings": (dict[str, Any], "The settings of the validation."),
    "methods": list[Any],
    "format?": Literal[2],
    "model?": str,
    "target?": str,
    "files?": (dict[str, str], "The digests of the package's files, by name."),
    "sizes?": (dict[str, int], "The sizes of the package's files in bytes, by name."),
    "places?": (
        dict[str, str],
        "Where the config sets each value: `file:line` by config path, such as `validate.atol`.",
    ),
    "sources?": (
        dict[str, str],
        "The digests of the workspace files that pages quote, at the time of the export or of",
        "reading the config.",
    ),
    "delegation?": {str: DELEGATION},
    "left_float?": (
        dict[str, int],
        "By method, the number of operators in control flow that quantization left in float.",
    ),
    "quantization?": (
        {str: QUANTIZATION_FACTS},
        "By method, facts about its quantization.",
    ),
    "portable?": (list[str], "The methods without a partitioner in the config."),
    "narrowed?": (
        {str: [NARROWED_SIZE]},
        "By method, the input sizes whose range lowering narrowed.",
    ),
    "warnings?": (
        {str: [LOWERING_WARNING]},
        "By method, the warnings of its lowering.",
    ),
    "facts?": (
        dict[str, dict[str, Any]],
        "By method, the facts that features recorded, by name.",
    ),
    "operators?": (
        [OPERATOR_LIBRARY],
        "The libraries of non-ATen operators that the methods call.",
    ),
    "output_shapes?": (
        dict[str, dict[str, str]],
        "The dtype and sizes of each output, by method and output.",
    ),
    "metrics?": (list[dict[str, Any]], "A row for each limit of a metric."),
    "common_state?": _COMMON_STATE,
    "only?": (list[str], "The requested methods, if not all were."),
    "processor?": (str, "The processor on which latencies were measured."),
    "worst?": dict[str, Figure],
    "seconds?": (
        dict[str, float],
        "By method, the seconds that it ran in the package, summed over all calls.",
    ),
}


def make_report_outline() -> dict[str, Any]:
    """Return the outline of `report.json`, including the fields of features."""
    report = {**_REPORT}
    method = {**METHOD_OUTLINE}
    for field, reference in find_functions("report_fields").items():
        place, _, name = field.rpartition(".")
        (method if place == "methods" else report)[f"{name}?"] = load(reference)
    return {**report, "methods": [method]}
