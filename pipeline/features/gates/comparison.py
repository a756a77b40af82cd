"""Compares two builds of a package, method by method, down to operators and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.report.formatting import percent
from pipeline.store.errors import listed
from pipeline.store.json_diff import diff_json, show_value
from pipeline.validate.figures import Build, MethodFigures, describe_left, output_names

Json = Mapping[str, Any]


# The figures that a verdict names, and how many.
_HEADLINES, _MOST_HEADLINES = ("size", "nodes delegated", "SQNR"), 4


class Row(NamedTuple):
    """A figure that differs, before and after; cells may be empty."""

    what: str
    before: str = ""
    after: str = ""
    change: str = ""


@dataclass(frozen=True)
class Section:
    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Comparison:
    """The differences of a package from a build that `against` names."""

    package: str
    against: str
    sections: tuple[Section, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        return not self.sections

    @property
    def verdict(self) -> str:
        compared = "no difference from" if self.same else "compared with"
        return f"{self.package}: {compared} {self.against}"

    def rows(self) -> Iterator[Row]:
        """Yield the rows of all sections, each section under its title."""
        for section in self.sections:
            yield Row(section.title)
            for row in section.rows:
                yield row._replace(what=f"  {row.what}")

    @property
    def headline(self) -> str:
        """Return the changes that count most, for a line: size, delegation and SQNR."""
        found = [
            f"{row.what}{'' if section.title == 'package' else f' of {section.title}'} {row.change}"
            for section in self.sections
            for row in section.rows
            if row.change and row.what.startswith(_HEADLINES)
        ]
        others = ", ".join(section.title for section in self.sections)
        return listed(found, _MOST_HEADLINES) or f"other {others}"

    def markdown(self) -> Iterator[str]:
        """Yield lines of Markdown for a pull request: what changed most, and then all in a folded
        table."""
        package, against = f"**`{self.package}`**", _escape(self.against)
        verdict = f"no difference from {against}" if self.same else _escape(self.headline)
        yield f"{package}: {verdict}"
        for note in self.notes:
            yield from ("", f"> {_escape(note)}")
        if self.same:
            return
        yield from ("", f"<details><summary>compared with {against}</summary>", "")
        yield from self._table()
        yield from ("", "</details>")

    def _table(self) -> Iterator[str]:
        yield from ("| | before | after | change |", "| --- | ---: | ---: | --- |")
        for section in self.sections:
            yield f"| **{_escape(section.title)}** | | | |"
            for row in section.rows:
                yield f"| {' | '.join(map(_escape, row))} |"


def _escape(text: str) -> str:
    for mark in "\\|*_`<":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def compare_builds(
    package: str, old: Build, new: Build, against: str, notes: Sequence[str] = ()
) -> Comparison:
    """Compare two builds of a package.

    Running times are left out, and so are numerics of the same bytes, which differ from one
    processor to the next.
    """
    found: list[tuple[str, Iterable[Row]]] = [("package", _package(old, new))]
    names = old.figures.methods.keys() | new.figures.methods.keys()
    found += [(name, _method(name, old, new)) for name in sorted(names)]
    found.append(("tensors", _tensors(old, new)))
    if old.manifest is not None and new.manifest is not None:
        options = ("model", "target", "order", "constant_methods", "emit", "host")
        found.append(("options", _manifest(old.manifest, new.manifest, options)))
        before, after = (m.get("family", {}) for m in (old.manifest, new.manifest))
        found.append(("family", _manifest(before, after, ["name", "base", "share"])))
        before, after = (m.get("metadata", {}) for m in (old.manifest, new.manifest))
        found.append(("commit in metadata", _manifest(before, after, ["revision"])))
        found.append(("toolchain", _manifest(old.manifest, new.manifest, ["toolchain"])))
    sections = (Section(title, tuple(rows)) for title, rows in found)
    kept = tuple(section for section in sections if section.rows)
    return Comparison(package, against, kept, tuple(notes))


def _package(old: Build, new: Build) -> Iterator[Row]:
    before, after = old.figures, new.figures
    if before.digest == after.digest:
        return
    yield from _numbers("size", before.size, after.size)
    for kind, a, b in _pairs(before.segments, after.segments, 0):
        yield from _numbers(kind, a, b)
    if old.manifest is None or new.manifest is None:
        if before.size == after.size:
            yield Row("files", "", "", "other bytes")
        return
    for name, a, b in _pairs(old.manifest["files"], new.manifest["files"]):
        sizes = [f"{file['size']:,}" if file else "" for file in (a, b)]
        change = _existence(a, b) or _change(a["size"], b["size"]) or "other bytes"
        yield Row(name, sizes[0], sizes[1], change)


def _method(name: str, old: Build, new: Build) -> Iterator[Row]:
    before, after = old.figures.methods.get(name), new.figures.methods.get(name)
    if before is None or after is None:
        cells = [
            f"{each.delegated_nodes} of {each.nodes} nodes delegated" if each else ""
            for each in (before, after)
        ]
        yield Row("method", cells[0], cells[1], _existence(before, after))
        return
    theirs, ours = (b.manifest and b.manifest["methods"].get(name) for b in (old, new))
    yield from _delegation(before, after, (ours or {}).get("delegation", {}))
    yield from _numbers("planned memory", before.planned_memory, after.planned_memory)
    yield from _numbers("constants", before.constants, after.constants)
    yield from _numbers("delegated payloads and weights", before.delegated, after.delegated)
    if old.figures.digest != new.figures.digest:
        yield from _numerics(before, after, ours or {})
    if theirs is None or ours is None:
        return
    if theirs["program"] != ours["program"]:
        yield Row("program", theirs["program"][:12], ours["program"][:12], "another program")
    yield from _manifest(theirs, ours, ["lowering", "signature"])
    left = [facts.get("left_float", 0) for facts in (theirs, ours)]
    if left[0] != left[1]:
        yield Row("not quantized", *map(str, left))


def _delegation(before: MethodFigures, after: MethodFigures, delegation: Json) -> Iterator[Row]:
    for noun in ("nodes", "operators"):
        shares = [each.share(noun) for each in (before, after)]
        cells = [
            f"{getattr(each, f'delegated_{noun}')} of {getattr(each, noun)} ({percent(share)})"
            for each, share in zip((before, after), shares, strict=True)
        ]
        if cells[0] != cells[1]:
            points = 100 * (shares[1] - shares[0])
            change = f"{points:+.1f} points" if points else ""
            yield Row(f"{noun} delegated", cells[0], cells[1], change)
    for backend, a, b in _pairs(before.partitions, after.partitions, 0):
        yield Row(f"partitions of {backend}", str(a), str(b), f"{b - a:+}")
    for operator, a, b in _pairs(before.left, after.left, 0):
        words = "newly left" if not a else "no longer left" if not b else f"{b - a:+}"
        why = describe_left(delegation, operator) if b > a else ""
        yield Row(f"left: {operator}", str(a), str(b), words + why)


def _numerics(before: MethodFigures, after: MethodFigures, facts: Json) -> Iterator[Row]:
    old, new = before.sqnr_db, after.sqnr_db
    if old is None or new is None or old == new:
        return
    if len(old) != len(new):
        yield Row("outputs", str(len(old)), str(len(new)))
        return
    names = output_names(facts.get("signature", {}), len(new))
    for name, a, b in zip(names, old, new, strict=True):
        if a != b:
            cells = ["undefined" if each is None else f"{each:g} dB" for each in (a, b)]
            change = f"{b - a:+.1f} dB" if a is not None and b is not None else ""
            yield Row(f"SQNR of {name}", cells[0], cells[1], change)
    errors = [each.max_abs for each in (before, after)]
    if errors[0] != errors[1]:
        shown = ("float32's own" if each is None else f"{each:g}" for each in errors)
        yield Row("max abs error", *shown)


def _tensors(old: Build, new: Build) -> Iterator[Row]:
    """Yield the tensors that came, went, or are stored in another way; none where a build's are not
    known. A baseline knows only the largest."""
    before, after = old.figures.tensors, new.figures.tensors
    if not before or not after:
        return
    least = min(tensor.size for tensor in before.values()) if old.manifest is None else -1
    rows = []
    for name, a, b in _pairs(before, after):
        if a is None and b.size <= least:
            continue
        sizes = [tensor.size if tensor else 0 for tensor in (a, b)]
        cells = [f"{t.dtype} {t.shape}, {t.size:,}" if t else "" for t in (a, b)]
        change = _existence(a, b)
        change = change or (_change(*sizes) if a.dtype == b.dtype else "another dtype")
        rows.append((-abs(sizes[1] - sizes[0]), Row(name, cells[0], cells[1], change)))
    yield from (row for _, row in sorted(rows))


def _pairs(
    before: Mapping[str, Any], after: Mapping[str, Any], absent: Any = None
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the values that differ, by name."""
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name, absent), after.get(name, absent)
        if a != b:
            yield name, a, b


def _manifest(before: Json, after: Json, names: Iterable[str]) -> Iterator[Row]:
    for name in names:
        for each in diff_json({name: before.get(name)}, {name: after.get(name)}):
            what = ".".join(each.path).removeprefix("toolchain.")
            yield Row(what, _show(each.old), _show(each.new))


def _show(value: Any) -> str:
    """Show a value of a manifest; of a list of partitioners or passes, their names."""
    if isinstance(value, list) and all(isinstance(e, dict) and "name" in e for e in value):
        return ", ".join(each["name"] for each in value) or "none"
    return "none" if value is None else show_value(value)


def _numbers(what: str, before: int | None, after: int | None) -> Iterator[Row]:
    if before is not None and after is not None and before != after:
        yield Row(what, f"{before:,}", f"{after:,}", _change(before, after))


def _change(before: int, after: int) -> str:
    """Describe a change of a size; empty where there is none."""
    if before == after:
        return ""
    share = f" ({100 * (after / before - 1):+.1f} %)" if before else ""
    return f"{after - before:+,}{share}"


def _existence(before: Any, after: Any) -> str:
    return "is new" if before is None else "is gone" if after is None else ""
