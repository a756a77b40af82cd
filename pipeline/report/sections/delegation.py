"""What delegates run of each method, and what they leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pipeline.report import formatting as figures
from pipeline.report.charts import specs as charts
from pipeline.report.charts.colours import LEFT
from pipeline.report.charts.draw import chart
from pipeline.report.html import tables
from pipeline.report.html.tables import Cell, Table

Json = Mapping[str, Any]


def delegation(methods: Mapping[str, Json]) -> dict[str, Any]:
    if not methods:
        return {"delegation": None}
    legend: dict[str, str] = {}
    for counts in methods.values():
        legend |= {name: colour for name, colour, _ in charts.delegation_parts(counts)}
    drawn = {
        m: counts["stretches"]
        for m, counts in methods.items()
        if counts.get("stretches") and counts["nodes"]
    }
    return {
        "delegation": chart(
            "Nodes by who runs them.",
            "A node is a call of an operator, in control flow too; moves of data are none.",
            sorted(legend.items(), key=lambda entry: entry[1] == LEFT),
            "Share of nodes delegated, by method",
            partial(charts.delegation, methods),
        ),
        "stretches": chart(
            "Regions of the graph.",
            "Each method from its first node to its last: what each delegate runs, and what was "
            "left between. Hover for the operators.",
            [],
            "Delegated regions in the order of each method's graph",
            partial(charts.stretches, drawn),
        )
        if drawn
        else None,
        "counts": _counts(methods),
        "left": _left(methods),
        "kernels": _kernels(methods),
    }


def _counts(methods: Mapping[str, Json]) -> Table:
    rows = []
    for method, counts in sorted(methods.items()):
        border = counts.get("border")
        share = figures.delegated(counts)
        operators = counts["delegated_operators"], counts["operators"]
        crossing = sum(border[side]["bytes"] for side in ("into", "out_of")) if border else None
        rows.append(
            (
                Cell(method, kind="name"),
                Cell(
                    f"{counts['delegated_nodes']} of {counts['nodes']}",
                    share,
                    note=figures.percent(share) if share is not None else "",
                ),
                Cell(
                    f"{operators[0]} of {operators[1]}",
                    operators[0] / operators[1] if operators[1] else None,
                ),
                Cell(
                    ", ".join(f"{n} {b}" for b, n in sorted(counts["partitions"].items()))
                    or "none",
                    sum(counts["partitions"].values()),
                ),
                tables.figure(crossing, figures.size(crossing)),
                tables.figure(border["copies"], str(border["copies"]))
                if border
                else Cell(figures.NOTHING, figures.number(None)),
                Cell(str(counts.get("subgraphs", figures.NOTHING)), counts.get("subgraphs")),
            )
        )
    head = (
        "method",
        "nodes delegated",
        "operators delegated",
        "partitions",
        "bytes over borders",
        "copies there",
        "sub-graphs",
    )
    return tables.table("delegation", "Delegation by method", head, rows, (1, 2, 4, 5, 6))


def _left(methods: Mapping[str, Json]) -> Table:
    """Calls left to portable kernels, those alike as one row."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for method, counts in sorted(methods.items()):
        known = counts.get("left")
        if known is None:
            known = [
                {"operator": name}
                for name, calls in counts["undelegated"].items()
                for _ in range(calls)
            ]
        for each in known:
            key = (method, each["operator"], each.get("reason", ""), each.get("line", ""))
            groups.setdefault(key, []).append(each.get("module", ""))
    ranked = sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    rows = [
        (
            tables.code(operator, note=_modules(modules)),
            Cell(method),
            Cell(str(len(modules)), len(modules)),
            Cell(reason or figures.NOTHING, kind="" if reason else "soft"),
            tables.source(line),
        )
        for (method, operator, reason, line), modules in ranked
    ]
    head = ("operator", "method", "calls", "why", "source")
    return tables.table("left", "Left to portable kernels", head, rows, (2,))


def _modules(names: Sequence[str]) -> str:
    known = sorted({name for name in names if name})
    more = f" and {len(known) - 2} more" if len(known) > 2 else ""
    return f"in {', '.join(known[:2])}{more}" if known else ""


def _kernels(methods: Mapping[str, Json]) -> Table:
    rows = [
        (Cell(method, kind="name"), Cell(backend), tables.code(name), Cell(str(calls), calls))
        for method, counts in sorted(methods.items())
        for backend, own in sorted(counts.get("kernels", {}).items())
        for name, calls in sorted(own.items())
    ]
    head = ("method", "backend", "operator", "calls")
    return tables.table("kernels", "Kernels of backends", head, rows, (3,))


def left_float(methods: Mapping[str, int]) -> Table:
    why = "in control flow, whose bodies no quantizer looks into"
    rows = [(Cell(m, kind="name"), Cell(str(n), n), Cell(why)) for m, n in sorted(methods.items())]
    head = ("method", "operators", "where")
    return tables.table("left-float", "Kept in floating point", head, rows, (1,))
