"""Compares two builds of a package, method by method, down to operators and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pipeline.features.gates.rendering import (
    Change,
    Comparison,
    ComparisonRow,
    Titled,
)
from pipeline.features.gates.rows import (
    describe_change,
    describe_delegated,
    facts_of,
    manifest_rows,
    method_rows,
    size_rows,
)
from pipeline.store.json_diff import Difference, diff_names

Json = Mapping[str, Any]


def compare_builds(
    package: str, old: Json, new: Json, against: str, notes: Sequence[str] = ()
) -> Comparison:
    """Compare two builds of a package.

    Running times are left out, and so are the numerics if the bytes are equal, since they vary from
    one processor to the next.
    """
    renamed = _find_renamed_methods(old, new)
    methods = dict[str, Change]()
    sections: list[Titled] = [("package", tuple(_package(old, new)))]
    for name in _method_names(old, new, renamed):
        previous = renamed.get(name, name)
        sections.append((name, tuple(method_rows(previous, name, old, new))))
        if name not in new["figures"]["methods"]:
            methods[name] = "removed"
        elif name in renamed:
            methods[name] = "renamed"
        elif name not in old["figures"]["methods"]:
            methods[name] = "new"
    sections.append(("tensors", tuple(_tensors(old, new))))
    if old["manifest"] is not None and new["manifest"] is not None:
        sections += _compare_manifests(old["manifest"], new["manifest"])
    return Comparison(
        package, against, _non_empty(sections), tuple(notes), methods=methods
    )


def describe_one_build(
    package: str,
    change: Literal["new", "removed"],
    build: Json | None,
    against: str,
    notes: Sequence[str] = (),
) -> Comparison:
    """Describe a package that exists on only one side: its size, and its methods.

    Args:
        build: the package's build, or None if only the package's name is known.
    """
    sections: list[Titled] = []
    if build is not None:
        size = f"{build['figures']['size']:,}"
        sections.append(("package", (_one_sided("size", size, change),)))
        for name, method in build["figures"]["methods"].items():
            row = _one_sided("method", describe_delegated(method), change)
            sections.append((name, (row,)))
    return Comparison(package, against, tuple(sections), tuple(notes), change)


def _one_sided(
    figure: str, value: str, change: Literal["new", "removed"]
) -> ComparisonRow:
    if change == "new":
        return ComparisonRow(figure, "", value, "is new")
    return ComparisonRow(figure, value, "", "is gone")


def _non_empty(sections: Iterable[Titled]) -> tuple[Titled, ...]:
    return tuple((title, rows) for title, rows in sections if rows)


def _method_names(old: Json, new: Json, renamed: Mapping[str, str]) -> list[str]:
    """Return the names of all methods in both builds; for renamed methods only the new name."""
    names = old["figures"]["methods"].keys() | new["figures"]["methods"].keys()
    return sorted(names - set(renamed.values()))


def _find_renamed_methods(old: Json, new: Json) -> dict[str, str]:
    """Return the former names of methods that were only renamed, by their new names.

    Such a method has the same program, lowered in the same way, as a method that is gone.
    """
    before = old["figures"]["methods"]
    after = new["figures"]["methods"]
    gone = [name for name in before if name not in after]
    renamed = {}
    for name in after:
        identity = _identify(new, name)
        if name in before or identity is None:
            continue
        for previous in gone:
            if _identify(old, previous) == identity:
                renamed[name] = previous
                # Each former method has at most one new name.
                gone.remove(previous)
                break
    return renamed


def _identify(build: Json, method: str) -> Json | None:
    """Return the facts that identify a method whatever its name.

    Returns None if they are unknown or if it was compiled together with others.
    """
    facts = facts_of(build, method)
    if build["manifest"] is None or facts is None or facts["unit"] != method:
        return None
    unit = build["manifest"]["objects"].get(method)
    if unit is None:
        return None
    # The emitted program of an object names the method.
    parts = {kind: blobs for kind, blobs in unit["parts"].items() if kind != "program"}
    return {"program": facts["program"], "lowering": facts["lowering"], "parts": parts}


def _compare_manifests(old: Json, new: Json) -> Iterator[Titled]:
    options = ("model", "target", "order", "constant_methods", "emit", "host")
    yield ("options", tuple(manifest_rows(old, new, options)))
    families = (old.get("family", {}), new.get("family", {}))
    yield ("family", tuple(manifest_rows(*families, ["name", "base", "share"])))
    metadata = (old.get("metadata", {}), new.get("metadata", {}))
    yield ("commit in metadata", tuple(manifest_rows(*metadata, ["revision"])))
    yield ("toolchain", tuple(manifest_rows(old, new, ["toolchain"])))


def _package(old: Json, new: Json) -> Iterator[ComparisonRow]:
    before = old["figures"]
    after = new["figures"]
    if before["digest"] == after["digest"]:
        return
    yield from size_rows({"size": before["size"]}, {"size": after["size"]})
    yield from size_rows(before["segments"], after["segments"], absent=0)
    if old["manifest"] is not None and new["manifest"] is not None:
        files = diff_names(old["manifest"]["files"], new["manifest"]["files"], None)
        yield from map(_file_row, files)
    elif before["size"] == after["size"]:
        yield ComparisonRow("files", "", "", "other bytes")


def _file_row(difference: Difference) -> ComparisonRow:
    (name,), old, new = difference
    sizes = [f"{file['size']:,}" if file else "" for file in (old, new)]
    change = difference.change(changed="")
    if not change:
        change = describe_change(old["size"], new["size"]) or "other bytes"
    return ComparisonRow(name, sizes[0], sizes[1], change)


def _tensors(old: Json, new: Json) -> Iterator[ComparisonRow]:
    """Yield the tensors that were added, removed, or stored in another way.

    Yields nothing if a build's tensors are unknown. A baseline has only the largest tensors, so
    others that it lacks don't count as added.
    """
    before = old["figures"]["tensors"]
    after = new["figures"]["tensors"]
    if not before or not after:
        return
    least = -1
    if old["manifest"] is None:
        least = min(tensor["size"] for tensor in before.values())
    rows = []
    for difference in diff_names(before, after, None):
        (name,), then, now = difference
        if then is None and now["size"] <= least:
            continue
        size = then["size"] if then else 0
        new_size = now["size"] if now else 0
        change = difference.change(changed="")
        if not change:
            is_same_dtype = then["dtype"] == now["dtype"]
            change = (
                describe_change(size, new_size) if is_same_dtype else "another dtype"
            )
        row = ComparisonRow(name, _show_tensor(then), _show_tensor(now), change)
        rows.append((-abs(new_size - size), row))
    yield from (row for _, row in sorted(rows))


def _show_tensor(tensor: Json | None) -> str:
    if tensor is None:
        return ""
    return f"{tensor['dtype']} {tensor['shape']}, {tensor['size']:,}"
