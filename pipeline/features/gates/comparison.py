"""Compares two builds of a package, method by method, down to operators and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.report.formatting import percent
from pipeline.store.errors import listed
from pipeline.store.json_diff import Difference, diff_json, diff_names, show_value
from pipeline.validate.figures import (
    Build,
    MethodFigures,
    TensorFigures,
    describe_left,
    output_names,
)

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
        changes = []
        for section in self.sections:
            place = "" if section.title == "package" else f" of {section.title}"
            for row in section.rows:
                if row.change and row.what.startswith(_HEADLINES):
                    changes.append(f"{row.what}{place} {row.change}")
        titles = ", ".join(section.title for section in self.sections)
        return listed(changes, _MOST_HEADLINES) or f"other {titles}"

    def markdown(self) -> Iterator[str]:
        """Yield lines of Markdown for a pull request: what changed most, and then all in a folded
        table."""
        package = f"**`{self.package}`**"
        against = _escape(self.against)
        verdict = (
            f"no difference from {against}" if self.same else _escape(self.headline)
        )
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
    sections = [Section("package", tuple(_package(old, new)))]
    for name in sorted(old.figures.methods.keys() | new.figures.methods.keys()):
        sections.append(Section(name, tuple(_method(name, old, new))))
    sections.append(Section("tensors", tuple(_tensors(old, new))))
    if old.manifest is not None and new.manifest is not None:
        sections += _compare_manifests(old.manifest, new.manifest)
    non_empty = tuple(section for section in sections if section.rows)
    return Comparison(package, against, non_empty, tuple(notes))


def _compare_manifests(old: Json, new: Json) -> Iterator[Section]:
    options = ("model", "target", "order", "constant_methods", "emit", "host")
    yield Section("options", tuple(_manifest(old, new, options)))
    families = (old.get("family", {}), new.get("family", {}))
    yield Section("family", tuple(_manifest(*families, ["name", "base", "share"])))
    metadata = (old.get("metadata", {}), new.get("metadata", {}))
    yield Section("commit in metadata", tuple(_manifest(*metadata, ["revision"])))
    yield Section("toolchain", tuple(_manifest(old, new, ["toolchain"])))


def _package(old: Build, new: Build) -> Iterator[Row]:
    before = old.figures
    after = new.figures
    if before.digest == after.digest:
        return
    yield from _numbers("size", before.size, after.size)
    for (kind,), a, b in diff_names(before.segments, after.segments, 0):
        yield from _numbers(kind, a, b)
    if old.manifest is None or new.manifest is None:
        if before.size == after.size:
            yield Row("files", "", "", "other bytes")
        return
    for difference in diff_names(old.manifest["files"], new.manifest["files"], None):
        (name,), a, b = difference
        sizes = [f"{file['size']:,}" if file else "" for file in (a, b)]
        change = (
            difference.change(changed="")
            or _change(a["size"], b["size"])
            or "other bytes"
        )
        yield Row(name, sizes[0], sizes[1], change)


def _method(name: str, old: Build, new: Build) -> Iterator[Row]:
    before = old.figures.methods.get(name)
    after = new.figures.methods.get(name)
    if before is None or after is None:
        cells = (_describe_delegated(before), _describe_delegated(after))
        yield Row("method", *cells, Difference((name,), before, after).change())
        return
    theirs = _facts_of(old, name)
    ours = _facts_of(new, name)
    yield from _delegation(before, after, (ours or {}).get("delegation", {}))
    yield from _numbers("planned memory", before.planned_memory, after.planned_memory)
    yield from _numbers("constants", before.constants, after.constants)
    yield from _numbers(
        "delegated payloads and weights", before.delegated, after.delegated
    )
    if old.figures.digest != new.figures.digest:
        yield from _numerics(before, after, ours or {})
    if theirs is None or ours is None:
        return
    if theirs["program"] != ours["program"]:
        yield Row(
            "program", theirs["program"][:12], ours["program"][:12], "another program"
        )
    yield from _manifest(theirs, ours, ["lowering", "signature"])
    unquantized = theirs.get("left_float", 0)
    now_unquantized = ours.get("left_float", 0)
    if unquantized != now_unquantized:
        yield Row("not quantized", str(unquantized), str(now_unquantized))


def _facts_of(build: Build, method: str) -> Json | None:
    """Return what a build's manifest says of a method; None where it is not known."""
    if build.manifest is None:
        return None
    facts: Json | None = build.manifest["methods"].get(method)
    return facts


def _describe_delegated(figures: MethodFigures | None) -> str:
    if figures is None:
        return ""
    return f"{figures.delegated_nodes} of {figures.nodes} nodes delegated"


def _delegation(
    before: MethodFigures, after: MethodFigures, delegation: Json
) -> Iterator[Row]:
    for noun in ("nodes", "operators"):
        cells = (_describe_share(before, noun), _describe_share(after, noun))
        if cells[0] != cells[1]:
            points = 100 * (after.share(noun) - before.share(noun))
            change = f"{points:+.1f} points" if points else ""
            yield Row(f"{noun} delegated", *cells, change)
    for (backend,), old, new in diff_names(before.partitions, after.partitions, 0):
        yield Row(f"partitions of {backend}", str(old), str(new), f"{new - old:+}")
    for (operator,), old, new in diff_names(before.left, after.left, 0):
        if not old:
            change = "newly left"
        elif not new:
            change = "no longer left"
        else:
            change = f"{new - old:+}"
        if new > old:
            change += describe_left(delegation, operator)
        yield Row(f"left: {operator}", str(old), str(new), change)


def _describe_share(figures: MethodFigures, noun: str) -> str:
    delegated = getattr(figures, f"delegated_{noun}")
    total = getattr(figures, noun)
    return f"{delegated} of {total} ({percent(figures.share(noun))})"


def _numerics(
    before: MethodFigures, after: MethodFigures, facts: Json
) -> Iterator[Row]:
    old = before.sqnr_db
    new = after.sqnr_db
    if old is None or new is None or old == new:
        return
    if len(old) != len(new):
        yield Row("outputs", str(len(old)), str(len(new)))
        return
    names = output_names(facts.get("signature", {}), len(new))
    for name, then, now in zip(names, old, new, strict=True):
        if then == now:
            continue
        change = ""
        if then is not None and now is not None:
            change = f"{now - then:+.1f} dB"
        yield Row(f"SQNR of {name}", _decibels(then), _decibels(now), change)
    if before.max_abs != after.max_abs:
        yield Row(
            "max abs error", _show_error(before.max_abs), _show_error(after.max_abs)
        )


def _decibels(sqnr: float | None) -> str:
    if sqnr is None:
        return "undefined"
    return f"{sqnr:g} dB"


def _show_error(error: float | None) -> str:
    if error is None:
        return "float32's own"
    return f"{error:g}"


def _tensors(old: Build, new: Build) -> Iterator[Row]:
    """Yield the tensors that came, went, or are stored in another way; none where a build's are not
    known. A baseline knows only the largest."""
    before = old.figures.tensors
    after = new.figures.tensors
    if not before or not after:
        return
    least = -1
    if old.manifest is None:
        least = min(tensor.size for tensor in before.values())
    rows = []
    for difference in diff_names(before, after, None):
        (name,), then, now = difference
        if then is None and now.size <= least:
            continue
        size = then.size if then else 0
        new_size = now.size if now else 0
        change = difference.change(changed="")
        if not change:
            is_same_dtype = then.dtype == now.dtype
            change = _change(size, new_size) if is_same_dtype else "another dtype"
        row = Row(name, _show_tensor(then), _show_tensor(now), change)
        rows.append((-abs(new_size - size), row))
    yield from (row for _, row in sorted(rows))


def _show_tensor(tensor: TensorFigures | None) -> str:
    if tensor is None:
        return ""
    return f"{tensor.dtype} {tensor.shape}, {tensor.size:,}"


def _manifest(before: Json, after: Json, names: Iterable[str]) -> Iterator[Row]:
    for name in names:
        for difference in diff_json({name: before.get(name)}, {name: after.get(name)}):
            name_of_field = ".".join(difference.path).removeprefix("toolchain.")
            yield Row(name_of_field, _show(difference.old), _show(difference.new))


def _show(value: Any) -> str:
    """Show a value of a manifest; of a list of partitioners or passes, their names."""
    if isinstance(value, list) and all(
        isinstance(e, dict) and "name" in e for e in value
    ):
        return ", ".join(element["name"] for element in value) or "none"
    if value is None:
        return "none"
    return show_value(value)


def _numbers(figure: str, before: int | None, after: int | None) -> Iterator[Row]:
    if before is not None and after is not None and before != after:
        yield Row(figure, f"{before:,}", f"{after:,}", _change(before, after))


def _change(before: int, after: int) -> str:
    """Describe a change of a size; empty where there is none."""
    if before == after:
        return ""
    share = ""
    if before:
        share = f" ({100 * (after / before - 1):+.1f} %)"
    return f"{after - before:+,}{share}"
