"""The nodes of each method that each backend runs, and those left to portable kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline.report import charts
from pipeline.report.cells import code, figure, name, source, text
from pipeline.report.elements import Cell, Chart, DataTable, Json, ReportSection, Row
from pipeline.report.formatting import percent
from pipeline.report.records import delegated_share, in_order, name_kernels
from pipeline.store.errors import listed, plural
from pipeline.store.sizes import human_size

Piece = tuple[int, str, str]  # of a bar: nodes, colour and description


def section(report: Json) -> ReportSection:
    methods = in_order(report, report.get("delegation"))
    kernels = [
        {
            "method": name(method),
            "backend": text(backend),
            "operator": code(operator),
            "calls": figure(calls),
        }
        for method, counts in methods.items()
        for backend, own in sorted(counts.get("kernels", {}).items())
        for operator, calls in _ranked(own)
    ]
    left_float: list[Row] = [
        {
            "method": name(method),
            "operators in floating point": figure(number),
            "where": "control flow, whose bodies no quantizer looks into",
        }
        for method, number in in_order(report, report.get("left_float")).items()
    ]
    chosen = set(report.get("portable", ()))
    meant = {method: counts for method, counts in methods.items() if method in chosen}
    others = {method: counts for method, counts in methods.items() if method not in chosen}
    chosen_title = "Of methods without a partitioner, by choice"
    left = [operator for counts in others.values() for operator in counts["undelegated"]]
    counted = [_counts(*each) for each in methods.items()]
    return ReportSection(
        "delegation",
        "Delegation",
        _shares_chart(methods),
        _segments_chart(methods),
        DataTable("delegation", "Delegation by method", counted),
        DataTable("left", f"Left to {name_kernels(left)}", list(_left(others))),
        DataTable("portable", chosen_title, list(_left(meant)), folded=True),
        DataTable("kernels", "Kernels of backends", kernels),
        DataTable("left-float", "Not quantized", left_float),
    )


def _ranked(calls: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return operators with their calls, the most frequent first."""
    return sorted(calls.items(), key=lambda each: (-each[1], each[0]))


def _shares_chart(methods: Mapping[str, Json]) -> Chart | None:
    legend: dict[str, str] = {}
    rows: dict[str, list[Piece]] = {}
    for method, counts in methods.items():
        nodes, parts = counts["nodes"], list(_parts(counts))
        legend |= {name: colour for name, colour, _ in parts}
        share = delegated_share([counts])
        rows[f"{method}  {'no operators' if share is None else percent(share)}"] = [
            (
                amount,
                colour,
                f"{method}: {name}: {amount} of {nodes} nodes ({percent(amount / nodes)})",
            )
            for name, colour, amount in parts
        ]
    about = "A node is a call of an operator, in control flow too."
    names = sorted(legend.items(), key=lambda entry: entry[1] == charts.LEFT)
    label = "Share of nodes delegated, by method"
    drawing = charts.bars(rows, percents=True)
    return Chart("Nodes by who runs them.", about, names, label, drawing) if rows else None


def _share_words(amount: int, nodes: int) -> str:
    return f"{amount} of {nodes} nodes ({percent(amount / nodes)})"


def _parts(counts: Json) -> Iterator[tuple[str, str, int]]:
    """Yield what runs a method's nodes: its name, its colour, and how many nodes it runs."""
    backends = {name: own["nodes"] for name, own in (counts.get("backends") or {}).items()}
    if not backends and counts["delegated_nodes"]:  # an older record has their sum alone
        backends = {" + ".join(sorted(counts["partitions"])): counts["delegated_nodes"]}
    kernels = {name: sum(own.values()) for name, own in counts.get("kernels", {}).items()}
    colours = charts.backend_colours([*backends, *kernels])
    yield from ((name, colours[name], nodes) for name, nodes in sorted(backends.items()))
    yield from ((f"{name} kernels", colours[name], own) for name, own in sorted(kernels.items()))
    if left := counts["nodes"] - counts["delegated_nodes"] - sum(kernels.values()):
        yield f"left to {name_kernels(counts['undelegated'])}", charts.LEFT, left


def _segments_chart(methods: Mapping[str, Json]) -> Chart | None:
    rows = {
        method: list(_segments(method, counts["segments"]))
        for method, counts in methods.items()
        if counts.get("segments") and counts["nodes"]
    }
    about = (
        "Each method from its first node to its last: what each delegate runs, and what was "
        "left between. Hover or tap for the operators."
    )
    label = "Delegated regions in the order of each method's graph"
    return Chart("Regions of the graph.", about, [], label, charts.bars(rows)) if rows else None


def _segments(method: str, segments: Sequence[Json]) -> Iterator[Piece]:
    colours = charts.backend_colours(
        segment["backend"] for segment in segments if segment["backend"]
    )
    start = 1
    for index, segment in enumerate(segments):
        end = start + segment["nodes"]
        where = f"nodes {start}–{end - 1}, {segment['backend'] or 'left'}"
        calls = _ranked(segment["operators"])
        words = [f"{name} ×{number}" if number > 1 else name for name, number in calls]
        description = f"{method}, {where}: {listed(words, 6)} [{index}]"
        yield segment["nodes"], colours.get(segment["backend"], charts.LEFT), description
        start = end


def _counts(method: str, counts: Json) -> Row:
    boundary = counts.get("boundary") or {}
    run = [
        f"{backend}: {own['nodes']} in {plural(own['partitions'], 'partition')}"
        for backend, own in (counts.get("backends") or {}).items()
    ] or [f"{name}: {plural(number, 'partition')}" for name, number in counts["partitions"].items()]
    part, whole = counts["delegated_operators"], counts["operators"]
    share = delegated_share([counts])  # of nodes, which backends' own kernels count among
    return {
        "method": name(method),
        "nodes delegated": _part(counts["delegated_nodes"], counts["nodes"], share),
        "operators delegated": _part(part, whole, part / whole if whole else None),
        "backends": text("; ".join(run)),
        "into delegates": _crossing(boundary.get("into")),
        "out of delegates": _crossing(boundary.get("out_of")),
        "copies there": figure(boundary.get("copies")),
        "sub-graphs": figure(counts.get("subgraphs")),
    }


def _part(part: int, whole: int, share: float | None) -> Cell:
    return figure(share, lambda _: f"{part} of {whole}", note=percent(share))


def _crossing(crossing: Json | None) -> Cell:
    if crossing is None:
        return figure(None)
    return figure(crossing["bytes"], human_size, note=plural(crossing["tensors"], "tensor"))


def _left(methods: Mapping[str, Json]) -> Iterator[Row]:
    """Yield calls left to portable kernels, equal ones in one row, the most frequent first."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for method, counts in methods.items():
        calls = counts.get("left")
        if calls is None:  # an older record has their numbers alone
            calls = [{"operator": o} for o, n in counts["undelegated"].items() for _ in range(n)]
        for call in calls:
            key = (method, call["operator"], call.get("reason", ""), call.get("line", ""))
            groups.setdefault(key, []).append(call.get("module", ""))
    for key, modules in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        method, operator, reason, line = key
        known = sorted(set(filter(None, modules)))
        yield {
            "operator": code(operator, note=f"in {listed(known, 2)}" if known else ""),
            "method": name(method),
            "calls": figure(len(modules)),
            "why": text(reason),
            "source": source(line),
        }
