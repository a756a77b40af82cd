"""What is in a package and how long it takes, as parts of its report in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.report.markdown_parts import code, section, table
from pipeline.store.sizes import human_size

Json = Mapping[str, Any]
_LARGEST = 10
_KINDS = {
    "program": "program",
    "constants": "constants",
    "delegate": "delegates",
    "named_data": "named data",
    "mutable": "initial state",
    "padding": "padding",
}


def contents_sections(contents: Json | None) -> list[str]:
    """Of the record of contents.py; empty without one."""
    if not contents:
        return []
    return [
        _contents(contents),
        _methods(contents["methods"]),
        _shared(contents["shared"]),
        _twice(contents["twice"]),
        _largest(contents),
        _memory(contents["methods"]),
    ]


def latency_section(methods: Sequence[Json]) -> str:
    """Of the records of methods, for those that were timed. Not reproducible."""
    rows = [
        (
            code(method["method"]),
            _spread(timed["load_ms"]),
            f"{timed['first_ms']:g}",
            _spread(timed["steady_ms"]),
            _spread(timed["source_ms"]),
            f"{timed['ratio']:g}",
        )
        for method in methods
        if (timed := method.get("latency"))
    ]
    head = ("method", "load", "first run", "steady", "source in eager mode", "ratio")
    title = "Latency on the host, in ms: median (quartiles) of runs"
    return section(title, table(head, rows, numbers=range(1, 6)))


def _spread(figures: Json) -> str:
    quartiles = f"{figures['low']:g} to {figures['high']:g}"
    return f"{figures['median']:g} ({quartiles}) of {figures['runs']}"


def _contents(contents: Json) -> str:
    sizes: dict[str, Counter[str]] = {}
    for segment in contents["segments"]:
        sizes.setdefault(segment["file"], Counter())[segment["kind"]] += segment["size"]
    kinds = [kind for kind in _KINDS if any(own[kind] for own in sizes.values())]
    rows = [
        (code(file), *(human_size(own[kind]) for kind in kinds), human_size(own.total()))
        for file, own in sorted(sizes.items())
    ]
    head = ("file", *(_KINDS[kind] for kind in kinds), "all")
    return section("Contents", table(head, rows, numbers=range(1, len(head))))


def _methods(methods: Mapping[str, Json]) -> str:
    """Without constant methods, which have nothing."""
    rows = [
        (
            code(name),
            str(own["instructions"]),
            human_size(own["constants"]),
            _delegates(own["delegates"]),
            human_size(own["delegated"]),
        )
        for name, own in sorted(methods.items())
        if own["instructions"]
    ]
    head = ("method", "instructions", "constants", "delegates", "in delegates")
    return section("Methods", table(head, rows, numbers=(1, 2, 4)))


def _delegates(delegates: Sequence[Json]) -> str:
    """Numbers and payloads by backend."""
    found: dict[str, list[int]] = {}
    for each in delegates:
        found.setdefault(each["backend"], []).append(each["size"])
    told = (
        f"{len(sizes)} {backend} ({human_size(sum(sizes))})"
        for backend, sizes in sorted(found.items())
    )
    return ", ".join(told) or "-"


def _shared(shared: Sequence[Json]) -> str:
    """What the same methods share, in one row."""
    groups: dict[tuple[str, ...], list[Json]] = {}
    for each in shared:
        groups.setdefault(tuple(each["methods"]), []).append(each)
    ranked = sorted(groups.items(), key=lambda g: (-sum(e["size"] for e in g[1]), g[0]))
    rows = [
        (
            ", ".join(map(code, methods)),
            human_size(sum(each["size"] for each in own)),
            _some(each["what"] for each in own),
        )
        for methods, own in ranked
    ]
    head = ("shared by", "size", "what")
    return section("Shared, stored once", table(head, rows, numbers=(1,)))


def _twice(twice: Sequence[Json]) -> str:
    rows = [
        (
            each["what"],
            f"{each['times']} x {human_size(each['size'])}",
            "; ".join(each["where"]),
            each["advice"],
        )
        for each in twice[:_LARGEST]
    ]
    if len(twice) > _LARGEST:
        more = sum(each["size"] * (each["times"] - 1) for each in twice[_LARGEST:])
        rows.append((f"{len(twice) - _LARGEST} more", human_size(more), "", ""))
    head = ("what", "size", "where", "what can be done")
    return section("Stored more than once", table(head, rows, numbers=(1,)))


def _largest(contents: Json) -> str:
    rows = [
        (
            code(tensor["name"]) if tensor["name"] else _unnamed(tensor["key"]),
            tensor["dtype"] or "-",
            " x ".join(map(str, tensor["shape"])) or "-",
            human_size(tensor["size"]),
            f"{100 * tensor['size'] / contents['size']:.1f} %",
            f"{tensor['file']}: {_PLACES[tensor['where']]}",
            ", ".join(map(code, tensor["methods"])) or "-",
        )
        for tensor in contents["tensors"][:_LARGEST]
    ]
    head = ("tensor", "dtype", "shape", "size", "of the package", "where", "methods")
    return section("Largest tensors", table(head, rows, numbers=(3, 4)))


_PLACES = {
    "constants": "constants",
    "named_data": "named data",
    "mutable": "initial state",
    "delegate": "in a delegate, size in the program",
}


def _unnamed(key: str) -> str:
    return f"not known, key {code(key[:16])}" if key else "not known"


def _memory(methods: Mapping[str, Json]) -> str:
    rows = [
        (code(name), str(each["arena"]), human_size(each["size"]), f"{each['size']:,}")
        for name, own in sorted(methods.items())
        for each in own["planned_memory"]
    ]
    head = ("method", "arena", "planned", "bytes")
    return section("Memory", table(head, rows, numbers=range(1, 4)))


def _some(names: Iterable[str]) -> str:
    """The first few of many; the largest come first."""
    every = list(names)
    more = len(every) - 3
    return ", ".join(every[:3]) + (f" and {more} more" if more > 0 else "")
