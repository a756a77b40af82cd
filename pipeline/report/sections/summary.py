"""The head of a package's report: the verdict in a sentence, and the figures that matter most."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.report.cells import figure
from pipeline.report.elements import Cell, Json
from pipeline.report.formatting import NOTHING, decibel, error, percent, sort_key
from pipeline.report.records import delegated_share
from pipeline.store.errors import plural
from pipeline.store.sizes import human_size


def lead(report: Json) -> str:
    """Return the sentence that says whether the package is its source, or what is wrong."""
    methods = report["methods"]
    number = plural(len(methods), "method")
    if not report["ok"]:
        failed = sum(not method["ok"] for method in methods)
        gates = sum(not gate["ok"] for gate in report.get("gates") or ())
        wrong = [f"{failed} of {number} differ from the source"] if failed else []
        wrong += [f"{plural(gates, 'gate')} not met"] if gates else []
        return f"{'; '.join(wrong) or plural(len(report['failures']), 'failure')}."
    unrun = sum(bool(method["not_run"]) for method in methods)
    rest = f" {unrun} of them could not be run on this machine." if unrun else ""
    same = "are the same functions as their sources"
    same = "is the same function as its source" if len(methods) == 1 else same
    return f"{number} {same}, within the limits.{rest}"


def about(report: Json) -> str:
    return ", ".join(f"{name} {report[name]}" for name in ("model", "target") if report.get(name))


def key_figures(report: Json) -> dict[str, Cell]:
    """Return the figures by which packages are compared."""
    methods = (report.get("delegation") or {}).values()
    share, nodes = delegated_share(methods), sum(counts["nodes"] for counts in methods)
    total = sum(report["sizes"].values()) if report.get("sizes") else None
    sqnr, noisiest = _extreme(report, "sqnr_db", min)
    greatest, farthest = _extreme(report, "max_abs", max)
    return {
        "size": figure(total, human_size, note=f"{total or 0:,} bytes"),
        "nodes delegated": figure(share, percent, note=f"of {nodes:,}", bar=share),
        "worst SQNR": figure(sqnr, decibel, note=f"in {noisiest}"),
        "max error": figure(greatest, error, note=f"in {farthest}"),
    }


def _extreme(
    report: Json, name: str, pick: Callable[..., Json | None]
) -> tuple[float | str | None, str]:
    """Return the least or greatest of a figure over the methods that ran, and its method."""
    ran = [method for method in report["methods"] if method["runs"] and method[name] is not None]
    found = pick(ran, key=lambda method: sort_key(method[name]), default=None)
    return (found[name], found["method"]) if found else (None, "")


def known_figures(report: Json) -> dict[str, Cell]:
    figures = key_figures(report)
    return {title: cell for title, cell in figures.items() if cell.text != NOTHING}
