"""The table at the end of a run: a row for each package, or one for each method under it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.cli.columns import columns, cut_middle
from pipeline.plan.plan import Plan
from pipeline.report.events import DONE, INTERRUPTED, NOT_BUILT, Event, outcome_word
from pipeline.report.formatting import percent
from pipeline.store.files import REPORT
from pipeline.store.sizes import human_size

HEADINGS = (
    "package", "build", "verdict", "delegated", "size", "figure", "limit", "seconds",
)  # fmt: skip
# What a narrow terminal does without, the first one first; and how short names may get before that.
_DISPENSABLE = ("limit", "delegated", "seconds", "figure", "size")
_LEAST_NAME = 18
_RIGHT = ("delegated", "size", "figure", "limit", "seconds")

Row = Mapping[str, str]
Json = Mapping[str, Any]


def make_table(
    plan: Plan, events: Sequence[Event], methods: Iterable[str] | None, width: int | None
) -> Iterator[str]:
    """Yield the lines of the table of a run.

    Args:
        methods: the packages whose methods have rows; None means all of them.
        width: the columns of the terminal; None is any number of them.
    """
    rows = list(_rows(plan, events, methods))
    if not rows:  # it ended in an export
        return
    headings = [each for each in HEADINGS if each == "package" or any(row[each] for row in rows)]
    while width is not None and (room := width - _others(rows, headings)) < _needed(rows):
        droppable = next((each for each in _DISPENSABLE if each in headings), None)
        if droppable is None:
            break
        headings.remove(droppable)
    if width is not None:
        room = max(width - _others(rows, headings), 8)
        rows = [{**row, "package": cut_middle(row["package"], room)} for row in rows]
    right = [n for n, heading in enumerate(headings) if heading in _RIGHT]
    cells = [[row[heading] for heading in headings] for row in rows]
    yield from columns([headings, *cells], right=right, rule=True)


def _needed(rows: Sequence[Row]) -> int:
    """Return the columns that names need at least."""
    return min(max(len(row["package"]) for row in rows), _LEAST_NAME) if rows else 0


def _others(rows: Sequence[Row], headings: Sequence[str]) -> int:
    """Return the columns that all but the names take, with the space between."""
    return sum(2 + max(len(each), *(len(row[each]) for row in rows)) for each in headings[1:])


def _rows(
    plan: Plan, events: Sequence[Event], methods: Iterable[str] | None
) -> Iterator[dict[str, str]]:
    # This imports typing_extensions, which a no-op run does without.
    from pipeline.report.records import read_fitting, read_manifest

    shown = None if methods is None else set(methods)
    for package in sorted({str(event.package) for event in events if event.package}):
        own = [event for event in events if event.package == package]
        manifest = read_manifest(plan.workspace, package) or {}
        report = read_fitting(plan.workspace.package(package) / REPORT) or {}
        if report.get("files") != {n: f["digest"] for n, f in manifest.get("files", {}).items()}:
            report = {}  # of another build of it
        yield _package_row(package, own, manifest, report)
        if shown is None or package in shown:
            yield from _method_rows(own, manifest, report)


def _package_row(
    package: str, own: Sequence[Event], manifest: Json, report: Json
) -> dict[str, str]:
    from pipeline.report.headlines import worst_headline

    outcomes = {event.kind: event.outcome for event in reversed(own)}
    validated = outcomes.get("validate", "")
    row = dict.fromkeys(HEADINGS, "") | {
        "package": package,
        "build": _build_word(outcomes.get("link", _of_parts(own))),
        "verdict": "" if validated in (*DONE, "not-run") else outcome_word(validated),
        "seconds": f"{sum(event.seconds for event in own):.1f}",
    }
    if validated == "not-run":  # which is no verdict: nothing was there to be run, or no time
        row["verdict"] = "not validated" if outcomes.get("link") in DONE else NOT_BUILT
    if outcomes.get("link") in DONE:
        row["size"] = human_size(sum(file["size"] for file in manifest.get("files", {}).values()))
        row["delegated"] = _share([each["delegation"] for each in _methods(manifest).values()])
        if report and validated and (worst := worst_headline(report["methods"])):
            row |= {"figure": worst.figure, "limit": worst.limit}
    if report and validated in DONE:
        row["verdict"] = report["verdict"]
    return row


def _build_word(outcome: str) -> str:
    """Return what came of building a package or a method, in the words of the summary."""
    return NOT_BUILT if outcome == "not-run" else outcome_word(outcome)


def _of_parts(own: Sequence[Event]) -> str:
    """Return what came of the methods that were asked for without their package. Where a run was
    interrupted before it linked them, the package was not built."""
    if any(event.reason == INTERRUPTED for event in own):
        return "not-run"
    found = {event.outcome for event in own if event.kind in ("compile", "quantize")}
    order = ("failed", "not-run", "built", "refit", "hit", "up-to-date")
    return next((each for each in order if each in found), "")


def _method_rows(own: Sequence[Event], manifest: Json, report: Json) -> Iterator[dict[str, str]]:
    blank, linked = (
        dict.fromkeys(HEADINGS, ""),
        any(e.kind == "link" and e.outcome in DONE for e in own),
    )
    judged = {method["method"]: method for method in report.get("methods", ())}
    quantizing = {str(event.method): event.seconds for event in own if event.kind == "quantize"}
    units = [event for event in own if event.kind == "compile"]
    for unit in sorted(units, key=lambda unit: str(unit.method)):
        for method in str(unit.method).split("+"):
            seconds = unit.seconds + quantizing.get(method, 0.0)
            row = {
                "package": f"  {method}",
                "build": _build_word(unit.outcome),
                "seconds": f"{seconds:.1f}",
            }
            if linked:
                counts = _methods(manifest).get(method, {}).get("delegation")
                row["delegated"] = _share([counts] if counts else [])
                if method in judged:
                    row |= _verdict_cells(judged[method])
            yield blank | row


def _verdict_cells(method: Json) -> dict[str, str]:
    from pipeline.report.headlines import headline

    found = headline(method)
    return {"verdict": found.verdict, "figure": found.figure, "limit": found.limit}


def _methods(manifest: Json) -> Mapping[str, Any]:
    found: Mapping[str, Any] = manifest.get("methods", {})
    return found


def _share(counts: Sequence[Any]) -> str:
    from pipeline.report.records import delegated_share

    share = delegated_share(counts)
    return "" if share is None else percent(share)
