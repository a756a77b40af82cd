"""The page of one package: the verdict, what failed and where, then figures and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.report import formatting as figures
from pipeline.report import worst
from pipeline.report.html import tables
from pipeline.report.html.excerpts import excerpts
from pipeline.report.html.tables import Cell, Table
from pipeline.report.html.templating import page
from pipeline.report.sections import contents, numerics
from pipeline.report.sections import delegation as delegating
from pipeline.report.sections import failures as failing
from pipeline.report.sections import latency as latencies

Json = Mapping[str, Any]


def package_page(report: Json, sources: Mapping[str, str]) -> bytes:
    """One self-contained HTML file. Equal records and sources give equal bytes.

    Args:
        sources: texts of the files that `excerpts.files` names, by their paths in the workspace.
    """
    parts = {
        "name": report["package"],
        "ok": report["ok"],
        "summary": _summary(report),
        "about": _about(report),
        "facts": list(_facts(report)),
        "failures": list(failing.failures(report)),
        "culprits": list(failing.culprits(report)),
        "gates": failing.gates_table(report),
        "baseline": failing.baseline_table(report),
        "limits": numerics.limits(report["settings"]),
        "methods": numerics.methods(report),
        "errors": numerics.errors(report),
        "skipped": numerics.skipped(report),
        **delegating.delegation(report.get("delegation") or {}),
        "left_float": delegating.left_float(report.get("left_float") or {}),
        **contents.contents(report.get("contents")),
        **latencies.latency(report),
        "calls": numerics.calls(report),
        "excerpts": excerpts(report, sources),
        "files": _files(report),
        "settings": _settings(report),
    }
    return page("package.html.j2", sections=list(_sections(parts)), **parts)


def _sections(parts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if parts["failures"]:
        yield "failures", "What failed"
    if parts["gates"] or parts["baseline"]:
        yield "gates-section", "Gates"
    yield "numerics-section", "Numerics"
    for name, title in (
        ("delegation", "Delegation"),
        ("contents", "Contents"),
        ("latency", "Latency"),
    ):
        if parts[name]:
            yield f"{name}-section", title
    yield "calls-section", "Calls"
    if parts["excerpts"]:
        yield "source-section", "Lines"
    yield "files-section", "Files"


def _summary(report: Json) -> str:
    methods = report["methods"]
    if not report["ok"]:
        failed = sum(not method["ok"] for method in methods)
        gates = sum(not gate["ok"] for gate in report.get("gates") or ())
        told = [
            f"{failed} of {figures.count(len(methods), 'method')} differ from the source"
            if failed
            else "",
            f"{figures.count(gates, 'gate')} not met" if gates else "",
        ]
        words = "; ".join(part for part in told if part)
        return f"{words or figures.count(len(report['failures']), 'failure')}."
    unrun = sum(bool(method["not_run"]) for method in methods)
    told_unrun = f" {unrun} of them could not be run on this machine." if unrun else ""
    same = (
        "is the same function as its source"
        if len(methods) == 1
        else ("are the same functions as their sources")
    )
    return f"{figures.count(len(methods), 'method')} {same}, within the limits.{told_unrun}"


def _about(report: Json) -> str:
    told = [f"{name} {report[name]}" for name in ("model", "target") if report.get(name)]
    return ", ".join(told)


def _facts(report: Json) -> Iterator[tuple[str, str, str]]:
    if total := worst.size(report):
        yield "Size", figures.size(total), f"{total:,} bytes"
    share = worst.delegated(report)
    if share is not None:
        nodes = sum(each["nodes"] for each in report["delegation"].values())
        yield "Delegated", figures.percent(share), f"of {figures.count(nodes, 'node')}"
    for title, name, pick, style in (
        ("Worst SQNR", "sqnr_db", worst.worst_sqnr, figures.decibel),
        ("Greatest error", "max_abs", worst.greatest_error, figures.error),
    ):
        value = pick(report)
        if value is not None:
            where = next(m["method"] for m in report["methods"] if m["runs"] and m[name] == value)
            yield title, style(value), f"in {where}"


def _files(report: Json) -> Table:
    sizes = report.get("sizes") or {}
    rows = [
        (
            Cell(name, href=name, kind="code"),
            tables.figure(sizes.get(name), _bytes(sizes.get(name))),
            tables.code(digest),
        )
        for name, digest in sorted((report.get("files") or {}).items())
    ]
    return tables.table("files", "Files", ("file", "bytes", "BLAKE3"), rows, (1,))


def _bytes(size: int | None) -> str:
    return figures.NOTHING if size is None else f"{size:,}"


def _settings(report: Json) -> Table:
    places = report.get("places", {})
    rows = [
        (
            tables.code(name),
            Cell(str(value) if not isinstance(value, float) else f"{value:g}"),
            tables.source(places.get(f"validate.{name}")),
        )
        for name, value in report["settings"].items()
        if value is not None
    ]
    return tables.table("settings", "Validated with", ("setting", "value", "set in"), rows)
