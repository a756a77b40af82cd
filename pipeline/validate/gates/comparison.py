"""What tells two builds of a package apart, method by method, down to operators and tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.plan.key_diff import differences, shown_value
from pipeline.validate.gates.builds import Build
from pipeline.validate.gates.figures import (
    Change,
    MethodFigures,
    Tensor,
    output_names,
    share,
    share_of_operators,
    why_left,
)

Json = Mapping[str, Any]


class Row(NamedTuple):
    """What differs, as it was and as it is; cells may be empty."""

    what: str
    before: str
    after: str
    change: str = ""


@dataclass(frozen=True)
class Section:
    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Comparison:
    """Only what differs. `against` says what the package was compared with."""

    package: str
    against: str
    sections: tuple[Section, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        return not self.sections


def compared(
    package: str, old: Build, new: Build, against: str, notes: Sequence[str] = ()
) -> Comparison:
    """Running times are no part of it, and neither are numerics of the same bytes, which differ
    from one processor to the next."""
    sections = [Section("package", tuple(_package(old, new)))]
    before, after = old.figures["methods"], new.figures["methods"]
    for name in sorted(before.keys() | after.keys()):
        sections.append(Section(name, tuple(_method(name, old, new))))
    sections.append(Section("tensors", tuple(_tensors(old, new))))
    if old.manifest is not None and new.manifest is not None:
        sections += [
            Section("options", tuple(_options(old.manifest, new.manifest))),
            Section("toolchain", tuple(_differing(old.manifest, new.manifest, "toolchain"))),
        ]
    kept = tuple(section for section in sections if section.rows)
    return Comparison(package, against, kept, tuple(notes))


def _package(old: Build, new: Build) -> Iterator[Row]:
    was, now = old.figures, new.figures
    if was["digest"] == now["digest"]:
        return
    yield from _bytes("size", was["size"], now["size"])
    for kind in sorted(was["segments"].keys() | now["segments"].keys()):
        yield from _bytes(kind, was["segments"].get(kind, 0), now["segments"].get(kind, 0))
    if old.manifest is None or new.manifest is None:
        if was["size"] == now["size"]:
            yield Row("files", "", "", "other bytes")
        return
    theirs, ours = old.manifest["files"], new.manifest["files"]
    for name in sorted(theirs.keys() | ours.keys()):
        a, b = theirs.get(name), ours.get(name)
        if a is None or b is None:
            yield Row(name, _size_of(a), _size_of(b), _verb(a, b))
        elif a["digest"] != b["digest"]:
            yield Row(name, _size(a["size"]), _size(b["size"]), "other bytes")


def _method(name: str, old: Build, new: Build) -> Iterator[Row]:
    was, now = old.figures["methods"].get(name), new.figures["methods"].get(name)
    if was is None or now is None:
        one = now or was
        assert one is not None
        told = _delegated(one)
        yield Row("method", told if was else "", told if now else "", _verb(was, now))
        return
    theirs, ours = _facts(old, name), _facts(new, name)
    yield from _delegation(was, now, ours)
    for key, what in (
        ("planned_memory", "planned memory"),
        ("constants", "constants"),
        ("delegated", "delegated payloads and weights"),
    ):
        a, b = was.get(key), now.get(key)
        if a is not None and b is not None:
            yield from _bytes(what, int(str(a)), int(str(b)))
    if old.figures["digest"] != new.figures["digest"]:
        yield from _numerics(was, now, ours)
    if theirs is not None and ours is not None:
        yield from _made_of(theirs, ours)


def _facts(build: Build, method: str) -> Json | None:
    return None if build.manifest is None else build.manifest["methods"].get(method)


def _delegated(method: MethodFigures) -> str:
    return f"{method['delegated_nodes']} of {method['nodes']} nodes delegated"


def _delegation(was: MethodFigures, now: MethodFigures, facts: Json | None) -> Iterator[Row]:
    for part, whole, noun, of in (
        ("delegated_nodes", "nodes", "nodes", share),
        ("delegated_operators", "operators", "operators", share_of_operators),
    ):
        before, after = (
            f"{each[part]} of {each[whole]} ({of(each):.1%})"  # type: ignore[literal-required]
            for each in (was, now)
        )
        if before != after:
            points = 100 * (of(now) - of(was))
            change = f"{points:+.1f} points" if points else ""
            yield Row(f"{noun} delegated", before, after, change)
    for backend in sorted(was["partitions"].keys() | now["partitions"].keys()):
        a, b = was["partitions"].get(backend, 0), now["partitions"].get(backend, 0)
        yield from _counts(f"partitions of {backend}", a, b)
    for operator in sorted(was["left"].keys() | now["left"].keys()):
        a, b = was["left"].get(operator, 0), now["left"].get(operator, 0)
        for row in _counts(f"left: {operator}", a, b):
            words = "newly left" if not a else "no longer left" if not b else row.change
            why = why_left((facts or {}).get("delegation", {}), operator) if b > a else ""
            yield row._replace(change=words + why)


def _numerics(was: MethodFigures, now: MethodFigures, facts: Json | None) -> Iterator[Row]:
    a, b = was["sqnr_db"], now["sqnr_db"]
    if a is None or b is None:
        return
    if len(a) != len(b):
        yield Row("outputs", str(len(a)), str(len(b)))
        return
    names = output_names((facts or {}).get("signature", {}), len(b))
    differ = False
    for name, x, y in zip(names, a, b, strict=True):
        if x != y:
            differ = True
            change = f"{y - x:+.1f} dB" if x is not None and y is not None else ""
            yield Row(f"SQNR of {name}", _decibel(x), _decibel(y), change)
    x, y = was["max_abs"], now["max_abs"]
    if differ and x != y:
        yield Row("max abs error", _error(x), _error(y))


def _decibel(value: float | None) -> str:
    return "undefined" if value is None else f"{value:g} dB"


def _error(value: float | None) -> str:
    return "float32's own" if value is None else f"{value:g}"


def _made_of(was: Json, now: Json) -> Iterator[Row]:
    """What else the manifest tells of a method: its program, its options, what it takes."""
    if was["program"] != now["program"]:
        yield Row("program", was["program"][:12], now["program"][:12], "another program")
    yield from _differing(was, now, "lowering")
    yield from _differing(was, now, "signature")
    if was.get("left_float", 0) != now.get("left_float", 0):
        yield Row("not quantized", str(was.get("left_float", 0)), str(now.get("left_float", 0)))


def _tensors(old: Build, new: Build) -> Iterator[Row]:
    """Those that came, went, or are stored in another way. Where a build's are not known nothing
    is said, and a baseline knows the largest only."""
    was, now = old.figures["tensors"], new.figures["tensors"]
    if not was or not now:
        return
    least = min(tensor["size"] for tensor in was.values()) if old.partial else -1
    changes = [
        Change(name, was.get(name), now.get(name))
        for name in was.keys() | now.keys()
        if name in was or now[name]["size"] > least
    ]
    for change in sorted(changes, key=lambda change: (-_weight(change), change.what)):
        a, b = change.before, change.after
        if a != b:
            verb = _verb(a, b) or _delta(a["size"], b["size"])
            other = a and b and a["dtype"] != b["dtype"]
            yield Row(change.what, _tensor(a), _tensor(b), "another dtype" if other else verb)


def _weight(change: Change) -> int:
    sizes = [tensor["size"] if tensor else 0 for tensor in (change.before, change.after)]
    return abs(sizes[1] - sizes[0])


def _tensor(tensor: Tensor | None) -> str:
    return f"{tensor['dtype']} {tensor['shape']}, {_size(tensor['size'])}" if tensor else ""


def _options(was: Json, now: Json) -> Iterator[Row]:
    for name in ("model", "target", "order", "constant_methods", "emit", "host"):
        yield from _differing(was, now, name)


def _differing(was: Json, now: Json, name: str) -> Iterator[Row]:
    for each in differences({name: was.get(name)}, {name: now.get(name)}):
        what = ".".join(each.path)
        yield Row(what.removeprefix("toolchain."), _shown(each.old), _shown(each.new))


def _shown(value: Any) -> str:
    """Of a list of partitioners or passes, their names."""
    if isinstance(value, list) and all(isinstance(e, dict) and "name" in e for e in value):
        return ", ".join(each["name"] for each in value) or "none"
    return "none" if value is None else shown_value(value)


def _bytes(what: str, before: int, after: int) -> Iterator[Row]:
    if before != after:
        yield Row(what, _size(before), _size(after), _delta(before, after))


def _counts(what: str, before: int, after: int) -> Iterator[Row]:
    if before != after:
        yield Row(what, str(before), str(after), f"{after - before:+}")


def _size_of(file: Json | None) -> str:
    return "" if file is None else _size(file["size"])


def _size(size: int) -> str:
    return f"{size:,}"


def _delta(before: int, after: int) -> str:
    """Empty where nothing changed."""
    if before == after:
        return ""
    return f"{after - before:+,}" + (f" ({after / before - 1:+.1%})" if before else "")


def _verb(before: Any, after: Any) -> str:
    return "is new" if before is None else "is gone" if after is None else ""


# As text


def as_text(comparison: Comparison) -> Iterator[tuple[str, str, str, str]]:
    """Rows of cells, each section under its title."""
    for section in comparison.sections:
        yield section.title, "", "", ""
        for row in section.rows:
            yield f"  {row.what}", row.before, row.after, row.change


def verdict(comparison: Comparison) -> str:
    if comparison.same:
        return f"{comparison.package}: no difference from {comparison.against}"
    return f"{comparison.package}: compared with {comparison.against}"


def as_markdown(comparison: Comparison) -> Iterator[str]:
    """For a pull request."""
    package = f"`{comparison.package}`"
    if comparison.same:
        yield f"**{package}**: no difference from {_escaped(comparison.against)}"
    else:
        yield f"### {package} compared with {_escaped(comparison.against)}"
    for note in comparison.notes:
        yield ""
        yield f"> {_escaped(note)}"
    if comparison.same:
        return
    yield ""
    yield "| | before | after | change |"
    yield "| --- | ---: | ---: | --- |"
    for section in comparison.sections:
        yield f"| **{_escaped(section.title)}** | | | |"
        for row in section.rows:
            yield f"| {' | '.join(_escaped(cell) for cell in row)} |"


def _escaped(text: str) -> str:
    for mark in "\\|*_`<":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
