"""The rows of one method in a comparison of two builds, and the formats of figures of all kinds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.features.gates.figures import share_of
from pipeline.features.gates.outputs import find_changed_outputs, output_names
from pipeline.features.gates.rendering import ComparisonRow
from pipeline.report.formatting import percent
from pipeline.report.records import describe_left
from pipeline.store.json_diff import Difference, diff_json, diff_names, show_value

Json = Mapping[str, Any]


def method_rows(
    previous: str, name: str, old: Json, new: Json
) -> Iterator[ComparisonRow]:
    """Yield the rows of a method; `previous` is its name in the old build."""
    before = old["figures"]["methods"].get(previous)
    after = new["figures"]["methods"].get(name)
    if before is None or after is None:
        cells = (describe_delegated(before), describe_delegated(after))
        yield ComparisonRow(
            "method", *cells, Difference((name,), before, after).change()
        )
        return
    if previous != name:
        yield ComparisonRow("method", previous, name, "renamed, same program")
    theirs = facts_of(old, previous)
    ours = facts_of(new, name)
    yield from _delegation(before, after, (ours or {}).get("delegation", {}))
    yield from size_rows(_memory(before), _memory(after))
    yield from _output_shapes(before, after)
    if old["figures"]["digest"] != new["figures"]["digest"]:
        yield from _numerics(before, after, ours or {})
    if theirs is None or ours is None:
        return
    if theirs["program"] != ours["program"]:
        yield ComparisonRow(
            "program", theirs["program"][:12], ours["program"][:12], "another program"
        )
    yield from manifest_rows(theirs, ours, ["lowering", "signature"])
    unquantized = theirs.get("left_float", 0)
    now_unquantized = ours.get("left_float", 0)
    if unquantized != now_unquantized:
        yield ComparisonRow("not quantized", str(unquantized), str(now_unquantized))


def _output_shapes(before: Json, after: Json) -> Iterator[ComparisonRow]:
    """Yield outputs whose shape or dtype changed; a baseline may be older than these figures."""
    if before["outputs"] and after["outputs"]:
        changed = find_changed_outputs(before["outputs"], after["outputs"])
        for name, old, new in changed:
            yield ComparisonRow(f"output {name}", old, new, f"{old} to {new}")


def _memory(figures: Json) -> dict[str, int | None]:
    return {
        "planned memory": figures["planned_memory"],
        "constants": figures["constants"],
        "delegated payloads and weights": figures["delegated"],
    }


def facts_of(build: Json, method: str) -> Json | None:
    """Return a build's facts about a method from its manifest, or None if unknown."""
    if build["manifest"] is None:
        return None
    facts: Json | None = build["manifest"]["methods"].get(method)
    return facts


def describe_delegated(figures: Json | None) -> str:
    if figures is None:
        return ""
    return f"{figures['delegated_nodes']} of {figures['nodes']} nodes delegated"


def _delegation(before: Json, after: Json, delegation: Json) -> Iterator[ComparisonRow]:
    for noun in ("nodes", "operators"):
        cells = (_describe_share(before, noun), _describe_share(after, noun))
        if cells[0] != cells[1]:
            points = 100 * (share_of(after, noun) - share_of(before, noun))
            change = f"{points:+.1f} points" if points else ""
            yield ComparisonRow(f"{noun} delegated", *cells, change)
    for (backend,), old, new in diff_names(
        before["partitions"], after["partitions"], 0
    ):
        yield ComparisonRow(
            f"partitions of {backend}", str(old), str(new), f"{new - old:+}"
        )
    for (operator,), old, new in diff_names(before["left"], after["left"], 0):
        if not old:
            change = "newly left"
        elif not new:
            change = "no longer left"
        else:
            change = f"{new - old:+}"
        if new > old:
            change += describe_left(delegation, operator)
        yield ComparisonRow(f"left: {operator}", str(old), str(new), change)


def _describe_share(figures: Json, noun: str) -> str:
    delegated = figures[f"delegated_{noun}"]
    total = figures[noun]
    return f"{delegated} of {total} ({percent(share_of(figures, noun))})"


def _numerics(before: Json, after: Json, facts: Json) -> Iterator[ComparisonRow]:
    old = before["sqnr_db"]
    new = after["sqnr_db"]
    if old is None or new is None or old == new:
        return
    if len(old) != len(new):
        yield ComparisonRow("outputs", str(len(old)), str(len(new)))
        return
    names = output_names(facts.get("signature", {}), len(new))
    for name, then, now in zip(names, old, new, strict=True):
        if then == now:
            continue
        change = ""
        if then is not None and now is not None:
            change = f"{now - then:+.1f} dB"
        yield ComparisonRow(f"SQNR of {name}", _decibels(then), _decibels(now), change)
    if before["max_abs"] != after["max_abs"]:
        yield ComparisonRow(
            "max abs error",
            _show_error(before["max_abs"]),
            _show_error(after["max_abs"]),
        )


def _decibels(sqnr: float | None) -> str:
    if sqnr is None:
        return "undefined"
    return f"{sqnr:g} dB"


def _show_error(error: float | None) -> str:
    if error is None:
        return "float32's own"
    return f"{error:g}"


def manifest_rows(
    before: Json, after: Json, names: Iterable[str]
) -> Iterator[ComparisonRow]:
    for name in names:
        for difference in diff_json({name: before.get(name)}, {name: after.get(name)}):
            name_of_field = ".".join(difference.path).removeprefix("toolchain.")
            yield ComparisonRow(
                name_of_field, _show(difference.old), _show(difference.new)
            )


def _show(value: Any) -> str:
    """Format a value of a manifest; for a list of partitioners or passes, only their names."""
    if isinstance(value, list) and all(
        isinstance(e, dict) and "name" in e for e in value
    ):
        return ", ".join(element["name"] for element in value) or "none"
    if value is None:
        return "none"
    return show_value(value)


def size_rows(
    before: Mapping[str, int | None],
    after: Mapping[str, int | None],
    absent: int | None = None,
) -> Iterator[ComparisonRow]:
    """Yield the sizes that differ, except sizes that are None, so unknown, on one side."""
    for (figure,), old, new in diff_names(before, after, absent):
        if old is not None and new is not None:
            yield ComparisonRow(
                figure, f"{old:,}", f"{new:,}", describe_change(old, new)
            )


def describe_change(before: int, after: int) -> str:
    """Describe the change of a size, or return "" if there is none."""
    if before == after:
        return ""
    share = ""
    if before:
        share = f" ({100 * (after / before - 1):+.1f} %)"
    return f"{after - before:+,}{share}"
