"""What the bytes of a package are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.report import formatting as figures
from pipeline.report.charts import specs as charts
from pipeline.report.charts.colours import of_kind
from pipeline.report.charts.draw import chart
from pipeline.report.html import tables
from pipeline.report.html.tables import Cell, Table

Json = Mapping[str, Any]


_KINDS = {
    "program": "program",
    "constants": "constants",
    "delegate": "delegates",
    "named_data": "named data",
    "mutable": "mutable data",
    "padding": "padding",
}
_MOST_TILES = 120  # of one kind; further segments are drawn as one


def contents(record: Json | None) -> dict[str, Any]:
    if not record:
        return {"contents": None}
    segments = record["segments"]
    kinds = {kind: _kind(kind) for kind in (s["kind"] for s in segments)}
    totals = {k: sum(s["size"] for s in segments if s["kind"] == k) for k in kinds}
    legend = [
        (f"{kinds[kind]} {figures.size(totals[kind])}", of_kind(kind))
        for kind in sorted(kinds, key=lambda kind: -totals[kind])
    ]
    tiles = list(_tiles(segments))
    return {
        "contents": True,
        "treemap": chart(
            "Bytes of the package.",
            "As areas, by what they are. Hover for names.",
            legend,
            "Size of each segment of the package",
            lambda width: charts.treemap(tiles, width, 380 if width > 500 else 420),
        )
        if tiles
        else None,
        "segments": _segments(segments, record["size"]),
        "memory": _memory(record["methods"]),
        "tensors": _tensors(record["tensors"]),
        "shared": _shared(record["shared"]),
        "twice": _twice(record["twice"]),
    }


def _kind(name: str) -> str:
    return _KINDS.get(name, name)


def _tiles(segments: Sequence[Json]) -> Iterator[dict[str, Any]]:
    for kind in dict.fromkeys(segment["kind"] for segment in segments):
        own = sorted((s for s in segments if s["kind"] == kind), key=lambda s: -s["size"])
        for segment in own[:_MOST_TILES]:
            yield _tile(segment, segment["name"], _described(segment))
        if rest := own[_MOST_TILES:]:
            size = sum(segment["size"] for segment in rest)
            name = f"{len(rest)} more"
            told = f"{name} of {_kind(kind)}: {figures.size(size)}"
            yield _tile({"kind": kind, "size": size}, name, told)


def _tile(segment: Json, name: str, told: str) -> dict[str, Any]:
    kind = str(segment["kind"])
    return {"name": name, "size": segment["size"], "kind": kind, "group": kind, "told": told}


def _described(segment: Json) -> str:
    of = f" of {', '.join(segment['methods'])}" if segment["methods"] else ""
    name = segment["name"] or _kind(segment["kind"])
    return f"{name}{of}: {figures.size(segment['size'])} ({segment['size']:,} bytes)"


def _segments(segments: Sequence[Json], whole: int) -> Table:
    rows = [
        (
            Cell(_kind(each["kind"]), kind="whole"),
            tables.code(each["name"]),
            Cell(f"{each['size']:,}", each["size"]),
            Cell(figures.percent(each["size"] / whole), each["size"]) if whole else Cell(""),
            Cell(", ".join(each["methods"]) or figures.NOTHING),
            Cell(each["backend"] or figures.NOTHING),
            Cell(f"{each['offset']:,}", each["offset"]),
        )
        for each in sorted(segments, key=lambda s: (-s["size"], s["file"], s["offset"]))
    ]
    head = ("kind", "name", "bytes", "share", "methods", "backend", "offset")
    return tables.table("segments", "Segments", head, rows, (2, 3, 6))


def _memory(methods: Mapping[str, Json]) -> Table:
    rows = []
    for method, own in sorted(methods.items()):
        arenas = [arena["size"] for arena in own["planned_memory"]]
        told = ", ".join(f"arena {a['arena']}: {a['size']:,}" for a in own["planned_memory"])
        rows.append(
            (
                Cell(method, kind="name"),
                Cell(f"{sum(arenas):,}", sum(arenas), note=told if len(arenas) > 1 else ""),
                Cell(f"{own['constants']:,}", own["constants"]),
                Cell(f"{own['delegated']:,}", own["delegated"]),
                Cell(str(len(own["delegates"])), len(own["delegates"])),
                Cell(str(own["instructions"]), own["instructions"]),
            )
        )
    head = ("method", "planned memory", "constants", "delegated", "delegates", "instructions")
    caption = "Bytes that each method needs"
    return tables.table("memory", caption, head, rows, range(1, 6))


def _tensors(tensors: Sequence[Json]) -> Table:
    rows = [
        (
            tables.code(each["name"] or each.get("key", "")),
            Cell(each["dtype"]),
            Cell(" × ".join(str(size) for size in each["shape"]) or "scalar"),
            Cell(f"{each['size']:,}", each["size"]),
            Cell(_kind(each.get("where", "")), kind="whole"),
            Cell(", ".join(each.get("methods", ())) or figures.NOTHING),
        )
        for each in tensors
    ]
    head = ("tensor", "dtype", "shape", "bytes", "in", "methods")
    return tables.table("tensors", "Largest tensors", head, rows, (3,))


def _shared(shared: Sequence[Json]) -> Table:
    rows = [
        (
            tables.code(each["what"]),
            Cell(f"{each['size']:,}", each["size"]),
            Cell(", ".join(each["methods"])),
        )
        for each in shared
    ]
    return tables.table(
        "shared", "Stored once for several", ("what", "bytes", "methods"), rows, (1,)
    )


def _twice(twice: Sequence[Json]) -> Table:
    rows = [
        (
            tables.code(each["what"]),
            Cell(f"{each['size']:,}", each["size"]),
            Cell(str(each["times"]), each["times"]),
            Cell("; ".join(each["where"]), kind="wide", note=each.get("advice", "")),
        )
        for each in twice
    ]
    head = ("what", "bytes", "times", "where")
    return tables.table("twice", "Stored more than once", head, rows, (1, 2))
