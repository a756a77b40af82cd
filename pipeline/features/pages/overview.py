"""Sections of the overview page: what didn't run, what changed, and totals.

The totals are listed by backend and by target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pipeline.report.cells import figure, name, text
from pipeline.report.elements import Cell, DataTable, Json, ReportSection, Row
from pipeline.report.formatting import percent
from pipeline.report.method_records import ALL, UNASKED
from pipeline.report.packages import Entry
from pipeline.report.records import name_kernels
from pipeline.store.errors import listed
from pipeline.store.sizes import human_size

_MOST_METHODS = 4  # named in a cell
# Reasons for the parts of a method's validation that were left out.
_UNSEEN = {UNASKED: UNASKED, ALL: "validate.budget was exhausted"}


def not_judged_section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section of the methods and quantizations that ran but that nothing judges."""
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
    """Return the methods of a package that have a part without a verdict, by part and reason."""
    unjudged: dict[tuple[str, str], list[str]] = {}
    for method in _methods(entry):
        for part, verdict, why in _verdicts(method):
            if verdict == "not judged":
                unjudged.setdefault((part, why), []).append(method["method"])
    return unjudged


def _methods(entry: Entry) -> Sequence[Json]:
    if entry.report is not None:
        return entry.report["methods"]
    return ()


def _verdicts(method: Json) -> Iterator[tuple[str, str, str]]:
    """Yield the verdicts on a method: the part judged, the verdict, and the reason."""
    yield "lowering", method["verdict"], method.get("verdict_reason", "")
    quantization = method.get("quantization")
    if quantization:
        yield "quantization", quantization["verdict"], quantization["reason"]
    reference = method.get("reference")
    if reference:
        yield "export", reference["verdict"], reference["reason"]


def not_run_section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section of methods that didn't run here, and of packages not validated yet."""
    rows: list[Row] = []
    for entry in entries:
        if entry.report is None and not entry.error:
            reason = Cell("not validated yet", kind="wide")
            rows.append(
                {"package": name(entry.package), "methods": "all", "why": reason}
            )
        for why, methods in _reasons(entry).items():
            rows.append(
                {
                    "package": name(entry.package, href=entry.page),
                    "methods": listed(methods, _MOST_METHODS),
                    "why": Cell(why, kind="wide"),
                }
            )
    return ReportSection(
        "not-run", "What did not run", DataTable("unrun", "Not run", rows)
    )


def _reasons(entry: Entry) -> dict[str, list[str]]:
    """Return the methods of a package that were not run, by reason."""
    methods_by_reason: dict[str, list[str]] = {}
    for method in _methods(entry):
        reasons = [method["not_run"]]
        reasons += [_UNSEEN.get(part, "") for part in method.get("left_out", ())]
        for reason in filter(None, reasons):
            methods_by_reason.setdefault(reason, []).append(method["method"])
    return methods_by_reason


# By method: the share of nodes that was delegated in the build before, and the share now.
Drops = Mapping[str, Sequence[float]]


def drops_section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section of methods that delegate fewer nodes than in the build before."""
    rows: list[Row] = []
    for entry in entries:
        package = name(entry.package, href=entry.page)
        rows += [{"package": package, **row} for row in _make_drop_rows(entry.drops)]
    return _make_drops_section(rows)


def package_drops_section(drops: Drops) -> ReportSection:
    """Return the section of the methods of one package that delegate fewer nodes than before."""
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
    return ReportSection("drops", "Delegated less than before", table)


def sums_section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section of sums by backend and by target."""
    return ReportSection(
        "sums",
        "By backend and target",
        DataTable("backends", "Nodes by what runs them", list(_by_backend(entries))),
        DataTable("targets", "Targets", list(_by_target(entries))),
    )


def provenance_section(facts: Mapping[str, str]) -> ReportSection:
    """Return the section of sources, versions and host that the packages were built with."""
    rows: list[Row] = []
    for fact, value in facts.items():
        rows.append({"what": name(fact), "value": Cell(value, kind="wide")})
    return ReportSection(
        "provenance", "Provenance", DataTable("provenance", "Built from", rows)
    )


def _by_backend(entries: Iterable[Entry]) -> Iterator[Row]:
    nodes: Counter[str] = Counter()
    users: dict[str, set[tuple[str, str]]] = {}
    for entry in entries:
        for method, counts in ((entry.report or {}).get("delegation") or {}).items():
            for backend, number in _count_nodes(counts).items():
                nodes[backend] += number
                users.setdefault(backend, set()).add((entry.package, method))
    whole = nodes.total()
    ranked = sorted(nodes.items(), key=lambda entry: (-entry[1], entry[0]))
    for backend, number in ranked:
        packages = {package for package, _ in users[backend]}
        yield {
            "runs on": name(backend),
            "packages": figure(len(packages)),
            "methods": figure(len(users[backend])),
            "nodes": figure(number),
            "share": figure(number / whole, percent, bar=number / whole),
        }


def _count_nodes(counts: Json) -> Counter[str]:
    """Return the number of a method's nodes that each backend or kernel library runs."""
    nodes: Counter[str] = Counter()
    for backend, share in (counts.get("backends") or {}).items():
        nodes[backend] += share["nodes"]
    for backend, kernels in counts.get("kernels", {}).items():
        nodes[backend] += sum(kernels.values())
    undelegated = counts["nodes"] - nodes.total()
    if undelegated:
        nodes[name_kernels(counts["undelegated"])] = undelegated
    return nodes


def _by_target(entries: Iterable[Entry]) -> Iterator[Row]:
    targets: dict[str, list[Entry]] = {}
    for entry in entries:
        target = (entry.report or {}).get("target") or ""
        targets.setdefault(target, []).append(entry)
    if not any(targets):
        return
    # Packages without a target come last.
    ranked = sorted(targets.items(), key=lambda group: (not group[0], group[0]))
    for target, members in ranked:
        failed = sum(entry.failed for entry in members)
        passed = sum(entry.outcome == "passed" for entry in members)
        size = _total_size(members)
        yield {
            "target": name(target) if target else text("none", "soft"),
            "packages": figure(len(members)),
            "passed": figure(passed),
            "failed": figure(failed, kind="bad" if failed else ""),
            "others": figure(len(members) - passed - failed),
            "size": figure(size, human_size),
        }


def _total_size(entries: Iterable[Entry]) -> int:
    """Return the total bytes of packages; a shared file, such as family weights, counts once."""
    sizes: dict[str, int] = {}
    for entry in entries:
        report = entry.report or {}
        digests = report.get("files") or {}
        for file, size in (report.get("sizes") or {}).items():
            sizes[digests.get(file, f"{entry.package}/{file}")] = size
    return sum(sizes.values())
