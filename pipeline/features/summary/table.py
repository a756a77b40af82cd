"""The table at the end of a run: a row for each package, or one for each method under it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.cli.columns import columns, cut_middle
from pipeline.moments import call_all
from pipeline.plan.plan import Plan
from pipeline.report.events import DONE, INTERRUPTED, NOT_BUILT, Event, outcome_word
from pipeline.report.formatting import percent
from pipeline.store.files import REPORT
from pipeline.store.sizes import human_size

HEADINGS = (
    "package", "build", "verdict", "delegated", "size", "figure", "limit", "seconds",
)  # fmt: skip
# The columns that a narrow terminal drops, in this order, and the width of names that they make
# room for.
_DISPENSABLE = ("limit", "delegated", "seconds", "figure", "size")
_LEAST_NAME = 18
_RIGHT = ("delegated", "size", "figure", "limit", "seconds")

Row = Mapping[str, str]
Json = Mapping[str, Any]


def make_table(
    plan: Plan,
    events: Sequence[Event],
    methods: Iterable[str] | None,
    width: int | None,
) -> Iterator[str]:
    """Yield the lines of the table of a run.

    Args:
        methods: the packages whose methods have rows; None means all of them.
        width: the terminal's width in columns; None means any width.
    """
    rows = list(_rows(plan, events, methods))
    if not rows:  # the run ended during an export
        return
    headings = ["package"]
    for heading in HEADINGS[1:]:
        if any(row[heading] for row in rows):
            headings.append(heading)
    if width is not None:
        headings = _fit_headings(rows, headings, width)
        room = max(width - _width_of_figures(rows, headings), 8)
        rows = [{**row, "package": cut_middle(row["package"], room)} for row in rows]
    right = [number for number, heading in enumerate(headings) if heading in _RIGHT]
    lines = [headings]
    for row in rows:
        lines.append([row[heading] for heading in headings])
    yield from columns(lines, right=right, rule=True)


def _fit_headings(
    rows: Sequence[Row], headings: Sequence[str], width: int
) -> list[str]:
    """Return the headings to show, so that names get the columns that they need at least."""
    longest = max(len(row["package"]) for row in rows)
    needed = min(longest, _LEAST_NAME)
    fitting = list(headings)
    for heading in _DISPENSABLE:
        if width - _width_of_figures(rows, fitting) >= needed:
            break
        if heading in fitting:
            fitting.remove(heading)
    return fitting


def _width_of_figures(rows: Sequence[Row], headings: Sequence[str]) -> int:
    """Return the width of all columns except the names, with the space between columns."""
    width = 0
    for heading in headings[1:]:
        widest = max(len(row[heading]) for row in rows)
        width += 2 + max(len(heading), widest)
    return width


def _rows(
    plan: Plan, events: Sequence[Event], methods: Iterable[str] | None
) -> Iterator[dict[str, str]]:
    # Imported here: it imports typing_extensions, which a no-op run does without.
    from pipeline.report.records import read_fitting, read_manifest

    if methods is None:
        shown = None
    else:
        shown = set(methods)
    package_to_events: dict[str, list[Event]] = {}
    for event in events:
        if event.package:
            package_to_events.setdefault(event.package, []).append(event)
    for package, package_events in sorted(package_to_events.items()):
        manifest = read_manifest(plan.workspace, package) or {}
        report = read_fitting(plan.workspace.package(package) / REPORT) or {}
        files = manifest.get("files", {})
        if report.get("files") != {
            name: file["digest"] for name, file in files.items()
        }:
            report = {}  # it describes another build
        yield _package_row(package, package_events, manifest, report)
        if shown is None or package in shown:
            yield from _method_rows(package_events, manifest, report)


def _package_row(
    package: str, events: Sequence[Event], manifest: Json, report: Json
) -> dict[str, str]:
    outcomes = {event.kind: event.outcome for event in reversed(events)}
    validated = outcomes.get("validate", "")
    row = dict.fromkeys(HEADINGS, "") | {
        "package": package,
        "build": _build_word(outcomes.get("link", _outcome_of_methods(events))),
        "verdict": "" if validated in (*DONE, "not-run") else outcome_word(validated),
        "seconds": f"{sum(event.seconds for event in events):.1f}",
    }
    if validated == "not-run":  # not a verdict: there was nothing to run, or no time
        row["verdict"] = "not validated" if outcomes.get("link") in DONE else NOT_BUILT
    if outcomes.get("link") in DONE:
        files = manifest.get("files", {}).values()
        row["size"] = human_size(sum(file["size"] for file in files))
        methods = _methods(manifest).values()
        row["delegated"] = _share([method["delegation"] for method in methods])
        if report and validated:
            row |= _find_figure(report["methods"])
    if report and validated in DONE:
        row["verdict"] = report["verdict"]
    return row


def _build_word(outcome: str) -> str:
    """Return the outcome of building a package or a method, in the words of the summary."""
    if outcome == "not-run":
        return NOT_BUILT
    return outcome_word(outcome)


def _outcome_of_methods(events: Sequence[Event]) -> str:
    """Return the outcome of methods that were asked for without their package.

    If the run was interrupted before it linked them, the package was not built.
    """
    if any(event.reason == INTERRUPTED for event in events):
        return "not-run"
    outcomes = {
        event.outcome for event in events if event.kind in ("compile", "quantize")
    }
    for outcome in ("failed", "not-run", "built", "refit", "hit", "up-to-date"):
        if outcome in outcomes:
            return outcome
    return ""


def _method_rows(
    events: Sequence[Event], manifest: Json, report: Json
) -> Iterator[dict[str, str]]:
    blank = dict.fromkeys(HEADINGS, "")
    linked = any(event.kind == "link" and event.outcome in DONE for event in events)
    judged = {method["method"]: method for method in report.get("methods", ())}
    quantizing: dict[str, float] = {}
    units = []
    for event in events:
        if event.kind == "quantize":
            quantizing[str(event.method)] = event.seconds
        elif event.kind == "compile":
            units.append(event)
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
    from pipeline.report.verdicts import method_verdict

    return {"verdict": method_verdict(method), **_find_figure([method])}


def _find_figure(methods: Sequence[Json]) -> dict[str, str]:
    """Return the figure and the limit that decide the verdict on the worst of some methods."""
    for _, figure, limit, _ in call_all("find_headline", methods):
        return {"figure": figure, "limit": limit}
    return {}


def _methods(manifest: Json) -> Mapping[str, Any]:
    methods: Mapping[str, Any] = manifest.get("methods", {})
    return methods


def _share(counts: Sequence[Any]) -> str:
    from pipeline.report.records import delegated_share

    share = delegated_share(counts)
    if share is None:
        return ""
    return percent(share)
