"""The head of a package's page: five scores, and the answers below them.

Each score has the colour of its limit and its change since the accepted baseline. The answers say
in a line each what failed, was not judged, was not run, and changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.features.pages.method_list import SHARES, find_headline
from pipeline.moments import call_all
from pipeline.report.cells import verdict_cell
from pipeline.report.elements import Cell, DataTable, Json, Row
from pipeline.report.formatting import milliseconds, percent
from pipeline.report.packages import describe_causes
from pipeline.report.records import delegated_share, is_unchecked
from pipeline.store.errors import listed
from pipeline.store.sizes import human_size

_MOST_NAMED = 4  # methods or changes in a line
_MOST_CAUSES = 3


def list_scores(report: Json) -> list[dict[str, Any]]:
    """Return the known scores.

    Each has `title`, `text`, `note`, `kind` (a CSS class), `delta` (a string) and `delta_kind`.
    """
    changes = _list_changes(report)
    scores = [
        _size(report),
        _delegation(report),
        _accuracy(report),
        _latency(report),
        _memory(report),
    ]
    known = [score for score in scores if score is not None]
    for score in known:
        score |= _describe_delta(report, changes, score.pop("figures"))
    return known


def _score(
    title: str, text: str, note: str, kind: str, *figures: str
) -> dict[str, Any]:
    """Return a score; `figures` are the rows of the table of changes that it sums up."""
    return {
        "title": title,
        "text": text,
        "note": note,
        "kind": kind,
        "figures": figures,
    }


def _size(report: Json) -> dict[str, Any] | None:
    sizes = report.get("sizes")
    if not sizes:
        return None
    total = sum(sizes.values())
    kind = _rate_gates(report, "max_size", "max_added", "max_family")
    return _score("size", human_size(total), f"{total:,} bytes", kind, "size")


def _delegation(report: Json) -> dict[str, Any] | None:
    by_method = report.get("delegation") or {}
    share = delegated_share(by_method.values())
    if share is None:
        return None
    kind = _rate_gates(report, "min_delegated", "max_delegation")
    if not kind and not report.get("portable"):
        good, fair = SHARES
        kind = "good" if share >= good else "warn" if share >= fair else "bad"
    nodes = sum(counts["nodes"] for counts in by_method.values())
    note = f"of {nodes:,}"
    return _score("nodes delegated", percent(share), note, kind, "nodes delegated")


def _accuracy(report: Json) -> dict[str, Any] | None:
    verdict, worst, limit, _ = find_headline(report["methods"])
    if not worst:
        return None
    note = f"limit {limit}" if limit else ""
    return _score("worst figure", worst, note, verdict_cell(verdict).kind, "SQNR")


def _latency(report: Json) -> dict[str, Any] | None:
    timed = [method for method in report["methods"] if method.get("latency")]
    if not timed:
        return None
    slowest = max(timed, key=lambda m: m["latency"]["steady_ms"]["median"])
    median = slowest["latency"]["steady_ms"]["median"]
    ratio = slowest["latency"]["ratio"]
    note = f"{slowest['method']}, {ratio:.2f} × its source"
    kind = _rate_gates(report, "max_latency")
    return _score("slowest method", milliseconds(median), note, kind, "latency")


def _memory(report: Json) -> dict[str, Any] | None:
    planned: dict[str, int] = {}
    for method, facts in ((report.get("contents") or {}).get("methods") or {}).items():
        planned[method] = sum(arena["size"] for arena in facts["planned_memory"])
    if not any(planned.values()):
        return None
    method = max(planned, key=lambda name: planned[name])
    kind = _rate_gates(report, "max_planned")
    text = human_size(planned[method])
    return _score("peak planned memory", text, method, kind, "planned memory")


def _rate_gates(report: Json, *prefixes: str) -> str:
    """Return the CSS class of a figure from its gates' results, or "" if no gate was checked."""
    gates = [
        gate
        for gate in report.get("gates") or ()
        if gate["gate"].startswith(prefixes) and not is_unchecked(gate)
    ]
    if not gates:
        return ""
    return "good" if all(gate["ok"] for gate in gates) else "bad"


def _list_changes(report: Json) -> list[Row]:
    """Return the figures that differ from the baseline, as the features show them."""
    rows: list[Row] = []
    for table in call_all("highlights", report):
        if isinstance(table, DataTable):
            rows += table.rows
    return rows


def _describe_delta(
    report: Json, changes: Iterable[Row], figures: tuple[str, ...]
) -> dict[str, str]:
    """Return the change of a score since the baseline: the worst one if several methods changed."""
    texts: list[tuple[bool, str, str]] = []
    for row in changes:
        change = row["change"]
        if row["figure"] in figures and isinstance(change, Cell):
            words = change.text
            if row["of"] != "package":
                words += f" in {row['of']}"
            texts.append((change.kind != "bad", words, change.kind))
    if texts:
        _, words, kind = min(texts)
        return {"delta": words, "delta_kind": kind}
    if report.get("baseline"):
        return {"delta": "as in the baseline", "delta_kind": "soft"}
    return {"delta": "", "delta_kind": ""}


def list_answers(report: Json) -> list[dict[str, Any]]:
    """Return what failed, what was not judged or not run, and what changed.

    Each answer has `title`, `kind`, `href` and `lines`.
    """
    answers = [
        _answer("failed", "bad", "#failures-section", _list_causes(report)),
        _answer("not judged", "warn", "#methods=not judged", _list_unjudged(report)),
        _answer("not run", "soft", "#methods=not run", _list_unrun(report)),
        _answer("changed", "", "#gates-section", _list_steps(report)),
    ]
    return [answer for answer in answers if answer["lines"]]


def _answer(title: str, kind: str, href: str, lines: Iterable[str]) -> dict[str, Any]:
    return {"title": title, "kind": kind, "href": href, "lines": list(lines)}


def _list_causes(report: Json) -> Iterator[str]:
    causes = [] if report["ok"] else _join_limits(describe_causes(report))
    yield from causes[:_MOST_CAUSES]
    if len(causes) > _MOST_CAUSES:
        yield f"and {len(causes) - _MOST_CAUSES} more below"


def _join_limits(causes: Iterable[str]) -> list[str]:
    """Merge the sentences on one place that breaks several limits."""
    limits: dict[str, list[str]] = {}
    for cause in causes:
        place, mark, limit = cause.rpartition(": ")
        limits.setdefault(place + mark, []).append(limit)
    return [place + "; ".join(sentences) for place, sentences in limits.items()]


def _list_unjudged(report: Json) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for method in report["methods"]:
        parts = [{**method, "reason": method.get("verdict_reason", "")}]
        parts += [
            method[name] for name in ("quantization", "reference") if method.get(name)
        ]
        for part in parts:
            if part["verdict"] == "not judged":
                reasons.setdefault(part["reason"], []).append(method["method"])
    for reason, methods in reasons.items():
        yield f"{listed(dict.fromkeys(methods), _MOST_NAMED)}: {reason}"


def _list_unrun(report: Json) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for method in report["methods"]:
        if method["not_run"]:
            reasons.setdefault(method["not_run"], []).append(method["method"])
    for reason, methods in reasons.items():
        yield f"{listed(methods, _MOST_NAMED)}: {reason}"


def _list_steps(report: Json) -> Iterator[str]:
    steps: list[str] = []
    changes = _list_changes(report)
    changes.sort(key=lambda row: _kind_of(row) != "bad")
    for row in changes:
        change = row["change"]
        words = change.text if isinstance(change, Cell) else change
        steps.append(f"{row['figure']} of {row['of']} {words}")
    if steps:
        yield f"since the baseline: {listed(steps, _MOST_NAMED)}"
    elif report.get("baseline"):
        yield "nothing since the baseline"


def _kind_of(row: Row) -> str:
    change = row["change"]
    return change.kind if isinstance(change, Cell) else ""
