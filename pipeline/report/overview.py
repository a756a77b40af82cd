"""All packages at a glance: what did not run, what changed, and sums by backend and by target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pipeline.report.cells import figure, name, text
from pipeline.report.elements import Cell, DataTable, ReportSection, Row
from pipeline.report.formatting import percent
from pipeline.report.packages import Entry
from pipeline.report.records import ALL, UNASKED, name_kernels
from pipeline.report.sections import family
from pipeline.store.errors import listed
from pipeline.store.sizes import human_size

_MOST_METHODS = 4  # named in a cell
_MOST_CHARTS = 6  # of families
_UNSEEN = {UNASKED: UNASKED, ALL: "validate.budget was spent"}  # of what was left out of a method


def not_judged_section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section of methods and quantizations that ran, and that nothing judges."""
    rows: list[Row] = []
    for entry in entries:
        for (what, why), methods in _unjudged(entry).items():
            rows.append(
                {
                    "package": name(entry.package, href=entry.page),
                    "methods": listed(methods, _MOST_METHODS),
                    "what": what,
                    "why": Cell(why, kind="wide"),
                }
            )
    table = DataTable("unjudged", "Not judged", rows)
    return ReportSection("not-judged", "What is not judged", table)


def _unjudged(entry: Entry) -> dict[tuple[str, str], list[str]]:
    """Return the methods of a package without a verdict, by what of them has none, and why."""
    found: dict[tuple[str, str], list[str]] = {}
    for method in (entry.report or {"methods": ()})["methods"]:
        parts = {"lowering": (method["verdict"], method.get("verdict_reason", ""))}
        if quantization := method.get("quantization"):
            parts["quantization"] = (quantization["verdict"], quantization["reason"])
        if reference := method.get("reference"):
            parts["export"] = (reference["verdict"], reference["reason"])
        for what, (verdict, why) in parts.items():
            if verdict == "not judged":
                found.setdefault((what, why), []).append(method["method"])
    return found


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
    found: dict[str, list[str]] = {}
    for method in (entry.report or {"methods": ()})["methods"]:
        reasons = [method["not_run"], *(_UNSEEN.get(each) for each in method.get("left_out", ()))]
        for why in filter(None, reasons):
            found.setdefault(why, []).append(method["method"])
    return found


# By method, the shares of nodes that were delegated before, and are now.
Drops = Mapping[str, Sequence[float]]


def drops_section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section of methods of which less is delegated than in the build before."""
    rows: list[Row] = []
    for entry in entries:
        package = name(entry.package, href=entry.page)
        rows += [{"package": package, **row} for row in _make_drop_rows(entry.drops)]
    return _make_drops_section(rows)


def package_drops_section(drops: Drops) -> ReportSection:
    """Return the section of the methods of one package of which less is delegated."""
    return _make_drops_section(_make_drop_rows(drops))


def _make_drop_rows(drops: Drops) -> list[Row]:
    rows: list[Row] = []
    for method, (earlier, share) in drops.items():
        rows.append(
            {
                "method": name(method),
                "nodes delegated": figure(share, percent, kind="bad"),
                "in the build before": figure(earlier, percent),
            }
        )
    return rows


def _make_drops_section(rows: list[Row]) -> ReportSection:
    table = DataTable("drops", "Methods without a baseline", rows)
    return ReportSection("drops", "What is delegated less than before", table)


def families_section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section of packages that share weights, family by family."""
    families: dict[str, dict[str, family.Files]] = {}
    pages: dict[str, str] = {}
    for entry in entries:
        if found := (entry.report or {}).get("family"):
            own = families.setdefault(found["name"], {})
            own[entry.package] = found["packages"][entry.package]
            pages[entry.package] = entry.page
    rows = [family.summarize(each, families[each]) for each in sorted(families)]
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


def provenance_section(known: Mapping[str, str]) -> ReportSection:
    """Return the section of what the packages were built from and with, and where."""
    rows: list[Row] = [
        {"what": name(what), "value": Cell(value, kind="wide")} for what, value in known.items()
    ]
    return ReportSection("provenance", "Provenance", DataTable("provenance", "Built from", rows))


def _by_backend(entries: Iterable[Entry]) -> Iterator[Row]:
    nodes: dict[str, int] = {}
    users: dict[str, set[tuple[str, str]]] = {}
    for entry in entries:
        for method, counts in ((entry.report or {}).get("delegation") or {}).items():
            own = {name: each["nodes"] for name, each in (counts.get("backends") or {}).items()}
            for backend, kernels in counts.get("kernels", {}).items():
                own[backend] = own.get(backend, 0) + sum(kernels.values())
            if left := counts["nodes"] - sum(own.values()):
                own[name_kernels(counts["undelegated"])] = left
            for backend, number in own.items():
                nodes[backend] = nodes.get(backend, 0) + number
                users.setdefault(backend, set()).add((entry.package, method))
    whole = sum(nodes.values())
    for backend, number in sorted(nodes.items(), key=lambda each: (-each[1], each[0])):
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
    for target, own in sorted(targets.items(), key=lambda each: (not each[0], each[0])):
        sizes = [sum(each.report.get("sizes", {}).values()) for each in own if each.report]
        failed = sum(each.failed for each in own)
        passed = sum(each.outcome == "passed" for each in own)
        yield {
            "target": name(target) if target else text("none", "soft"),
            "packages": figure(len(own)),
            "passed": figure(passed),
            "failed": figure(failed, kind="bad" if failed else ""),
            "others": figure(len(own) - passed - failed),
            "size": figure(sum(sizes), human_size),
        }
