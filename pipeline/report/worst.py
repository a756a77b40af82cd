"""The figures by which packages are compared at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.report import formatting as figures

Json = Mapping[str, Any]


def size(report: Json) -> int | None:
    """Bytes of all files."""
    sizes = report.get("sizes")
    return sum(sizes.values()) if sizes else None


def delegated(report: Json) -> float | None:
    """The share of all methods' nodes that don't run on portable kernels."""
    counts = (report.get("delegation") or {}).values()
    nodes = sum(each["nodes"] for each in counts)
    inside = sum(each["delegated_nodes"] + figures.own_kernels(each) for each in counts)
    return inside / nodes if nodes else None


def worst_sqnr(report: Json) -> float | str | None:
    """In dB. None where it is undefined, as where no method ran."""
    known = [m["sqnr_db"] for m in report["methods"] if m["runs"] and m["sqnr_db"] is not None]
    return min(known, key=figures.number, default=None)


def greatest_error(report: Json) -> float | str | None:
    known = [m["max_abs"] for m in report["methods"] if m["runs"] and m["max_abs"] is not None]
    return max(known, key=figures.number, default=None)
