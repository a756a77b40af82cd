"""The report section on a package's contents: segments, tensors and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pipeline.features.inspection.treemaps import KINDS, draw_contents
from pipeline.report.cells import code, figure, name, names, text
from pipeline.report.elements import Cell, DataTable, Json, ReportSection, Row
from pipeline.report.formatting import percent
from pipeline.report.records import in_order
from pipeline.store.sizes import human_size

_BRIEF = 10  # Markdown rows of tables sorted by size
_PLACES = KINDS | {"delegate": "in a delegate, size in the program"}


def section(report: Json) -> ReportSection:
    if not (contents := report.get("contents")):
        return ReportSection("contents", "Contents")
    by_method = in_order(report, contents["methods"])
    whole = contents["size"]
    segments = contents["segments"]
    largest = sorted(segments, key=lambda s: (-s["size"], s["file"], s["offset"]))
    tensors = [_tensor(record, whole) for record in contents["tensors"]]
    shared = [
        {
            "what": code(record["what"]),
            "bytes": figure(record["size"]),
            "methods": names(record["methods"]),
        }
        for record in contents["shared"]
    ]
    saved = sum(
        record["size"] * (len(record["methods"]) - 1) for record in contents["shared"]
    )
    twice = [
        {
            "what": code(record["what"]),
            "bytes": figure(record["size"]),
            "times": figure(record["times"]),
            "where": Cell("; ".join(record["where"]), kind="wide"),
            "what can be done": Cell(record.get("advice", ""), kind="wide"),
        }
        for record in contents["twice"]
    ]
    extra = sum(record["size"] * (record["times"] - 1) for record in contents["twice"])
    more = f"Stored more than once: costs {human_size(extra)}"
    return ReportSection(
        "contents",
        "Contents",
        draw_contents(contents),
        DataTable("kinds", "Bytes of each file", list(_files(segments))),
        DataTable(
            "segments",
            "Segments",
            [_segment(record, whole) for record in largest],
            _BRIEF,
        ),
        DataTable("memory", "Bytes that each method needs", list(_methods(by_method))),
        DataTable("tensors", "Largest tensors", tensors, _BRIEF),
        DataTable(
            "shared", f"Shared, stored once: saves {human_size(saved)}", shared, _BRIEF
        ),
        DataTable("twice", more, twice, _BRIEF),
    )


def _kind(kind: str) -> str:
    return KINDS.get(kind, kind)


def _share(part: int, whole: int) -> Cell:
    return figure(part / whole if whole else None, percent)


def _files(segments: Sequence[Json]) -> Iterator[Row]:
    """Yield a row per file with its bytes by kind of segment."""
    sizes: dict[str, Counter[str]] = {}
    for segment in segments:
        sizes.setdefault(segment["file"], Counter())[segment["kind"]] += segment["size"]
    kinds = [
        kind
        for kind in KINDS
        if any(sizes_of_file[kind] for sizes_of_file in sizes.values())
    ]
    for file, sizes_of_file in sorted(sizes.items()):
        figures = {KINDS[kind]: figure(sizes_of_file[kind]) for kind in kinds}
        yield {"file": code(file), **figures, "all": figure(sizes_of_file.total())}


def _segment(segment: Json, whole: int) -> Row:
    return {
        "kind": Cell(_kind(segment["kind"]), kind="whole"),
        "name": code(segment["name"]),
        "bytes": figure(segment["size"]),
        "share": _share(segment["size"], whole),
        "methods": names(segment["methods"]),
        "backend": text(segment["backend"]),
        "offset": figure(segment["offset"]),
    }


def _methods(methods: Mapping[str, Json]) -> Iterator[Row]:
    """Yield a row per method with its memory, constants and instructions; skip constant methods."""
    for method, facts in methods.items():
        if not facts["instructions"]:
            continue
        arenas = facts["planned_memory"]
        arena_words = ", ".join(
            f"arena {arena['arena']}: {arena['size']:,}" for arena in arenas
        )
        planned = sum(arena["size"] for arena in arenas)
        payloads: dict[str, list[int]] = {}
        for delegate in facts["delegates"]:
            payloads.setdefault(delegate["backend"], []).append(delegate["size"])
        delegates = (
            f"{len(sizes)} of {backend}: {human_size(sum(sizes))}"
            for backend, sizes in sorted(payloads.items())
        )
        yield {
            "method": name(method),
            "planned memory": figure(
                planned, note=arena_words if len(arenas) > 1 else ""
            ),
            "constants": figure(facts["constants"]),
            "delegated": figure(facts["delegated"], note=", ".join(delegates)),
            "instructions": figure(facts["instructions"]),
        }


def _describe_shape(tensor: Json) -> str:
    """Return the sizes of a tensor's dimensions, or "" if its dtype and shape are unknown."""
    if not tensor["dtype"]:
        return ""
    return " × ".join(map(str, tensor["shape"])) or "scalar"


def _tensor(tensor: Json, whole: int) -> Row:
    key = tensor.get("key", "")[:16]
    unnamed = Cell("not known", kind="soft", note=f"key {key}" if key else "")
    where = _PLACES.get(tensor.get("where", ""), "")
    return {
        "tensor": code(tensor["name"]) if tensor["name"] else unnamed,
        "dtype": text(tensor["dtype"]),
        "shape": text(_describe_shape(tensor)),
        "bytes": figure(tensor["size"]),
        "share": _share(tensor["size"], whole),
        "in": text(": ".join(filter(None, (tensor.get("file"), where))), kind="whole"),
        "methods": names(tensor.get("methods", ())),
    }
