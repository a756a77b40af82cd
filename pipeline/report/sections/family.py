"""The family of a package: what its packages share, and what that saves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pipeline.report.cells import figure, name
from pipeline.report.elements import DataTable, Json, ReportSection, Row
from pipeline.report.formatting import percent
from pipeline.store.errors import plural
from pipeline.store.sizes import human_size

Files = Mapping[str, tuple[str, int]]  # of a package: digest and bytes by name


def section(report: Json) -> ReportSection:
    family: Mapping[str, Files] = report.get("family") or {}
    holders = Counter(digest for files in family.values() for digest, _ in files.values())
    every = [each for files in family.values() for each in files.values()]
    apart, together = sum(size for _, size in every), sum(size for _, size in set(every))
    return ReportSection(
        "family",
        "Family",
        _describe(len(family), apart, together) if family else None,
        _describe_payloads(report) if family else None,
        DataTable("family", "Who loads what", [_row(e, family[e], holders) for e in family]),
    )


def _describe(members: int, apart: int, together: int) -> str:
    saved = percent(1 - together / apart) if apart else percent(0)
    return (
        f"{plural(members, 'package')} of {human_size(apart)} apart, {human_size(together)} "
        f"together: sharing saves {saved}."
    )


def _describe_payloads(report: Json) -> str | None:
    """Say how much stands in delegates' payloads, where some backends keep weights."""
    methods = (report.get("contents") or {}).get("methods", {})
    sizes: Counter[str] = Counter()
    payloads = {
        (d["digest"], d["backend"], d["size"]) for m in methods.values() for d in m["delegates"]
    }
    for _, backend, size in payloads:
        sizes[backend] += size
    kept = ", ".join(f"{backend} {human_size(size)}" for backend, size in sorted(sizes.items()))
    return (
        f"Payloads of delegates stay in each package, with what they hold: {kept}."
        if kept
        else None
    )


def _row(package: str, files: Files, holders: Mapping[str, int]) -> Row:
    own = {file: size for file, (digest, size) in files.items() if holders[digest] == 1}
    shared = {file: size for file, (digest, size) in files.items() if holders[digest] > 1}
    return {
        "package": name(package, href=f"../{package}/report.html"),
        "its own": figure(sum(own.values()), human_size),
        "shared": figure(sum(shared.values()), human_size, note=", ".join(shared)),
        "all": figure(sum(own.values()) + sum(shared.values()), human_size),
    }
