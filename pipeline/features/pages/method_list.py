"""The list of a package's methods: a row for each, with its verdict, its margin and its cost.

A row unfolds to show the reasons, the failures and all figures of the method.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.features.pages.sections.method_comparisons import method_rows
from pipeline.moments import call_all
from pipeline.report.cells import verdict_cell
from pipeline.report.elements import DataTable, Json
from pipeline.report.failures import describe_failure
from pipeline.report.formatting import NOTHING, milliseconds, percent
from pipeline.report.records import delegated_share
from pipeline.report.verdicts import PASSED, VERDICTS, Verdict, method_verdict
from pipeline.store.errors import listed, plural
from pipeline.store.sizes import human_size

_INFINITE = 1e308  # replaces an infinite ratio, which a page can't hold
_NEAR = 0.5  # share of its limit from which a figure is amber
_MOST_FAILURES = 5  # per method
_MOST_OPERATORS = 6  # in a sentence
SHARES = (0.9, 0.5)  # of nodes delegated: good from 0.9 on, bad below 0.5


def list_methods(report: Json) -> list[dict[str, Any]]:
    """Return a row for each method, the worst verdict first.

    A failed method, or one with a failed gate, comes first. Within a verdict, the method with the
    figure nearest to its limit comes first.

    A row has strings (`name`, `verdict`, `figure`, `limit`, `delegated`, `size`, `latency`) and CSS
    classes (`kind`, `ratio_kind`, `delegated_kind`); `ratio`, the error divided by its limit, and
    `share`, the share of nodes delegated, each of which can be None; `backends`; the figures by
    which rows are sorted (`bytes`, `milliseconds`); and the content that unfolds: `sentences`,
    pairs of a title and a string, and `table`, the method's comparisons.
    """
    rows = [_make_row(method, report) for method in report["methods"]]
    unmet = {gate["method"] for gate in report.get("gates") or () if not gate["ok"]}

    def badness(row: Json) -> tuple[int, float]:
        rank = 0 if row["name"] in unmet else VERDICTS.index(row["verdict"])
        return rank, -(row["ratio"] or 0.0)

    rows.sort(key=badness)
    return rows


def find_headline(methods: Iterable[Json]) -> tuple[Verdict, str, str, float]:
    """Return the headline of methods from the `find_headline` hook, or a pass without words."""
    return next(call_all("find_headline", methods), (PASSED, "", "", 0.0))


def _make_row(method: Json, report: Json) -> dict[str, Any]:
    name = method["method"]
    delegation = (report.get("delegation") or {}).get(name)
    contents = ((report.get("contents") or {}).get("methods") or {}).get(name)
    latency = method.get("latency")
    verdict = method_verdict(method)
    _, decisive, limit, distance = find_headline([method])
    ratio = None
    if decisive and limit and distance >= 0:  # an older record has -1
        ratio = min(distance, _INFINITE)
    share = delegated_share([delegation]) if delegation else None
    row = {
        "name": name,
        "verdict": verdict,
        "kind": verdict_cell(verdict).kind,
        "figure": decisive or NOTHING,
        "limit": limit,
        "ratio": ratio,
        "ratio_kind": rate_distance(ratio, verdict),
        "share": share,
        "delegated": NOTHING if share is None else percent(share),
        "delegated_kind": rate_share(report, name, share),
        "backends": list_backends(delegation),
        "size": NOTHING,
        "bytes": -1,
        "latency": NOTHING,
        "milliseconds": -1,
    }
    if contents and contents["instructions"]:
        row["bytes"] = contents["constants"] + contents["delegated"]
        row["size"] = human_size(row["bytes"])
    if latency:
        row["milliseconds"] = latency["steady_ms"]["median"]
        row["latency"] = milliseconds(row["milliseconds"])
    row["sentences"] = [
        *_describe_gates(name, report),
        *_describe(method, delegation, contents),
    ]
    comparisons = list(method_rows(method, report.get("places", {})))
    row["table"] = DataTable("", f"Comparisons of {name}", comparisons)
    return row


def rate_distance(ratio: float | None, verdict: str) -> str:
    """Return the CSS class of an error, given as a multiple of its limit."""
    if verdict != PASSED:
        return verdict_cell(verdict).kind
    if ratio is None:
        return "soft"
    return "warn" if ratio >= _NEAR else "good"


def rate_share(report: Json, method: str, share: float | None) -> str:
    """Return the CSS class of a method's share of nodes delegated.

    A gate in the config decides, if it sets one. A method that has no partitioners on purpose gets
    the neutral class.
    """
    if share is None or method in report.get("portable", ()):
        return "soft"
    gates = [
        gate
        for gate in report.get("gates") or ()
        if gate["method"] == method and gate["gate"].startswith("min_delegated")
    ]
    if gates:
        return "good" if all(gate["ok"] for gate in gates) else "bad"
    good, fair = SHARES
    if share >= good:
        return "good"
    return "warn" if share >= fair else "bad"


def list_backends(delegation: Json | None) -> list[str]:
    """Return the backends that run nodes of a method."""
    if not delegation:
        return []
    return sorted({*(delegation.get("backends") or delegation["partitions"])})


def _describe_gates(method: str, report: Json) -> Iterator[tuple[str, str]]:
    """Yield the gates of a method that were not met or not checked, each with its reason."""
    for gate in report.get("gates") or ():
        if gate["method"] == method and gate["sentence"]:
            yield f"gate {gate['gate']}", gate["sentence"]


def _describe(
    method: Json, delegation: Json | None, contents: Json | None
) -> Iterator[tuple[str, str]]:
    """Yield the titles and sentences that a row unfolds to, the reasons first."""
    if method.get("verdict_reason"):
        yield method["verdict"], method["verdict_reason"]
    for part in ("quantization", "reference"):
        judged = method.get(part)
        if judged:
            yield f"{part}: {judged['verdict']}", judged["reason"]
    if method["not_run"]:
        yield "not run", method["not_run"]
    failures = method["failures"]
    for failure in failures[:_MOST_FAILURES]:
        yield "failure", describe_failure(failure)
    if len(failures) > _MOST_FAILURES:
        yield "failure", f"and {len(failures) - _MOST_FAILURES} more, in report.json"
    for culprit in method.get("culprits") or ():
        yield culprit["operator"], f"{culprit['what']}; {culprit['line']}"
    if delegation:
        yield from _describe_delegation(delegation)
    if contents:
        planned = sum(arena["size"] for arena in contents["planned_memory"])
        yield "planned memory", human_size(planned)


def _describe_delegation(delegation: Json) -> Iterator[tuple[str, str]]:
    for backend, share in (delegation.get("backends") or {}).items():
        partitions = plural(share["partitions"], "partition")
        yield (
            backend,
            f"{share['nodes']} of {delegation['nodes']} nodes in {partitions}",
        )
    undelegated: Mapping[str, int] = delegation["undelegated"]
    if undelegated:
        calls = [f"{operator} ×{count}" for operator, count in undelegated.items()]
        yield "not delegated", listed(calls, _MOST_OPERATORS)


def filter_words(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the verdicts and the backends that occur in the rows, to filter by."""
    verdicts = {row["verdict"] for row in rows}
    backends: set[str] = set()
    for row in rows:
        backends |= set(row["backends"])
    return {
        "verdict": [verdict for verdict in VERDICTS if verdict in verdicts],
        "backend": sorted(backends),
    }
