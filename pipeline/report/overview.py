"""All packages at a glance: what did not run, what changed, and sums by backend and by target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pipeline.report.cells import figure, name, text
from pipeline.report.elements import Cell, DataTable, ReportSection, Row
from pipeline.report.formatting import percent
from pipeline.report.packages import Entry
from pipeline.report.records import ALL, UNASKED, name_kernels
from pipeline.report.sections import family, gates
from pipeline.store.errors import listed, plural
from pipeline.store.sizes import human_size

_MOST_METHODS = 4  # named in a cell
_MOST_CHARTS = 6  # of families
_UNSEEN = {UNASKED: UNASKED, ALL: "validate.budget was spent"}  # of what was left out of a method


def not_judged_section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section of methods and quantizations that ran, and that nothing judges."""
    rows: list[Row] = []
    for entry in entries:
        for (part, why), methods in _unjudged(entry).items():
            rows.append(
                {
                    "package": name(entry.package, href=entry.page),
                    "methods": listed(methods, _MOST_METHODS),
                    "what": part,
                    "why": Cell(why, kind="wide"),
                }
            )
    table = DataTable("unjudged", "Not judged", rows)
    return ReportSection("not-judged", "What is not judged", table)


def _unjudged(entry: Entry) -> dict[tuple[str, str], list[str]]:
    """Return the methods of a package without a verdict, by what of them has none, and why."""
    unjudged: dict[tuple[str, str], list[str]] = {}
    for method in (entry.report or {"methods": ()})["methods"]:
        parts = {"lowering": (method["verdict"], method.get("verdict_reason", ""))}
        if quantization := method.get("quantization"):
            parts["quantization"] = (quantization["verdict"], quantization["reason"])
        if reference := method.get("reference"):
            parts["export"] = (reference["verdict"], reference["reason"])
        for part, (verdict, why) in parts.items():
            if verdict == "not judged":
                unjudged.setdefault((part, why), []).append(method["method"])
    return unjudged


def not_run_section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section of methods that this machine could not run, and of what is not validated
    yet."""
    rows: list[Row] = []
    for entry in entries:
        if entry.report is None and not entry.error:
            reason = Cell("not validated yet", kind="wide")
            rows.append({"package": name(entry.package), "methods": "all", "why": reason})
        for why, methods in _reasons(entry).items():
            rows.append(
                {
                    "package": name(entry.package, href=entry.page),
                    "methods": listed(methods, _MOST_METHODS),
                    "why": Cell(why, kind="wide"),
                }
            )
    return ReportSection("not-run", "What did not run", DataTable("unrun", "Not run", rows))


def _reasons(entry: Entry) -> dict[str, list[str]]:
    """Return the methods of a package that were not run, by why."""
    methods_by_reason: dict[str, list[str]] = {}
    for method in (entry.report or {"methods": ()})["methods"]:
        reasons = [method["not_run"], *(_UNSEEN.get(part) for part in method.get("left_out", ()))]
        for why in filter(None, reasons):
            methods_by_reason.setdefault(why, []).append(method["method"])
    return methods_by_reason


def changes_section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section of what changed since the accepted baselines, what is worse first."""
    reports = [(entry, entry.report) for entry in entries if entry.report is not None]
    accepted = [(entry, report) for entry, report in reports if report.get("baseline")]
    rows = [
        {"package": name(entry.package, href=entry.page), **row}
        for entry, report in accepted
        for row in gates.compare(report)
        if gates.is_change(row)
    ]
    rows.sort(key=lambda row: not gates.is_worse(row))
    equal = f"No figure of {plural(len(accepted), 'package')} with a baseline changed."
    return ReportSection(
        "changes",
        "What changed since the baseline",
        DataTable("changes", "Changes, the worse ones first", rows),
        equal if accepted and not rows else None,
    )


def drops_section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section of methods of which less is delegated than in the build before."""
    rows: list[Row] = [
        {
            "package": name(entry.package, href=entry.page),
            "method": name(method),
            "nodes delegated": figure(now, percent, kind="bad"),
            "in the build before": figure(was, percent),
        }
        for entry in entries
        for method, (was, now) in entry.drops.items()
    ]
    table = DataTable("drops", "Methods without a baseline", rows)
    return ReportSection("drops", "What is delegated less than before", table)


def families_section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section of packages that share weights, family by family."""
    families: dict[str, dict[str, family.Files]] = {}
    pages: dict[str, str] = {}
    for entry in entries:
        if record := (entry.report or {}).get("family"):
            packages = families.setdefault(record["name"], {})
            packages[entry.package] = record["packages"][entry.package]
            pages[entry.package] = entry.page
    rows = [
        family.summarize(family_name, families[family_name]) for family_name in sorted(families)
    ]
    charts = [family.make_chart(families[n], pages, n) for n in sorted(families)[:_MOST_CHARTS]]
    return ReportSection("families", "Families", DataTable("families", "Families", rows), *charts)


def sums_section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section of sums by backend and by target."""
    return ReportSection(
        "sums",
        "By backend and target",
        DataTable("backends", "Nodes by who runs them", list(_by_backend(entries))),
        DataTable("targets", "Targets", list(_by_target(entries))),
    )


def provenance_section(facts: Mapping[str, str]) -> ReportSection:
    """Return the section of what the packages were built from and with, and where."""
    rows: list[Row] = [
        {"what": name(material), "value": Cell(value, kind="wide")}
        for material, value in facts.items()
    ]
    return ReportSection("provenance", "Provenance", DataTable("provenance", "Built from", rows))


def _by_backend(entries: Iterable[Entry]) -> Iterator[Row]:
    nodes: dict[str, int] = {}
    users: dict[str, set[tuple[str, str]]] = {}
    for entry in entries:
        for method, counts in ((entry.report or {}).get("delegation") or {}).items():
            nodes_by_backend = {
                name: record["nodes"] for name, record in (counts.get("backends") or {}).items()
            }
            for backend, kernels in counts.get("kernels", {}).items():
                nodes_by_backend[backend] = nodes_by_backend.get(backend, 0) + sum(kernels.values())
            if undelegated := counts["nodes"] - sum(nodes_by_backend.values()):
                nodes_by_backend[name_kernels(counts["undelegated"])] = undelegated
            for backend, number in nodes_by_backend.items():
                nodes[backend] = nodes.get(backend, 0) + number
                users.setdefault(backend, set()).add((entry.package, method))
    whole = sum(nodes.values())
    for backend, number in sorted(nodes.items(), key=lambda entry: (-entry[1], entry[0])):
        yield {
            "runs on": name(backend),
            "packages": figure(len({package for package, _ in users[backend]})),
            "methods": figure(len(users[backend])),
            "nodes": figure(number),
            "share": figure(number / whole, percent, bar=number / whole),
        }


def _by_target(entries: Iterable[Entry]) -> Iterator[Row]:
    targets: dict[str, list[Entry]] = {}
    for entry in entries:
        targets.setdefault((entry.report or {}).get("target") or "", []).append(entry)
    if not any(targets):
        return
    for target, members in sorted(targets.items(), key=lambda group: (not group[0], group[0])):
        sizes = [sum(entry.report.get("sizes", {}).values()) for entry in members if entry.report]
        failed = sum(entry.failed for entry in members)
        passed = sum(entry.outcome == "passed" for entry in members)
        yield {
            "target": name(target) if target else text("none", "soft"),
            "packages": figure(len(members)),
            "passed": figure(passed),
            "failed": figure(failed, kind="bad" if failed else ""),
            "others": figure(len(members) - passed - failed),
            "size": figure(sum(sizes), human_size),
        }
