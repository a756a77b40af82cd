"""The record of a package's comparison, and its presentation as text or Markdown.

It knows neither builds nor figures; `comparison.py` makes comparisons from builds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pipeline.cli.columns import columns
from pipeline.store.errors import listed, plural

# What may have happened to a package or a method, in the order in which headings count them.
Change = Literal["changed", "removed", "renamed", "new"]
CHANGES: tuple[Change, ...] = ("changed", "removed", "renamed", "new")

# The figures that a headline names, and how many.
_HEADLINES, _MOST_HEADLINES = ("output ", "size", "nodes delegated", "SQNR"), 4


class ComparisonRow(NamedTuple):
    """A figure that differs, before and after; cells may be empty."""

    what: str
    before: str = ""
    after: str = ""
    change: str = ""


# The rows of a section under its title: a method, or another part of a build.
Titled = tuple[str, tuple[ComparisonRow, ...]]


@dataclass(frozen=True)
class Comparison:
    """The differences between a package and the build that `against` names.

    Attributes:
        change: what happened to the package, if `sections` show that anything did.
        previous: the earlier name of a renamed package.
        methods: the methods that are not in both builds or were renamed.
    """

    package: str
    against: str
    sections: tuple[Titled, ...] = ()
    notes: tuple[str, ...] = ()
    change: Change = "changed"
    previous: str = ""
    methods: Mapping[str, Change] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        return self.change == "changed" and not self.sections

    @property
    def verdict(self) -> str:
        return f"{self.package}: {self._words} {self.against}"

    @property
    def _words(self) -> str:
        if self.same:
            return "no difference from"
        if self.change == "changed":
            return "compared with"
        if self.change == "renamed":
            return f"renamed from {self.previous}, same bytes, since"
        return f"{self.change} since"

    def names_of(self, change: Change) -> list[str]:
        """Return the subjects of a change: the package, or methods if the package is in both."""
        if self.same:
            return []
        if self.change == change:
            return [self.package]
        if self.change in ("new", "removed"):
            return []
        methods = [name for name, made in self.methods.items() if made == change]
        return [f"{self.package}/{method}" for method in methods]

    def text(self) -> Iterator[str]:
        """Yield lines for a terminal: the verdict, and a table of the differences."""
        yield self.verdict
        for note in self.notes:
            yield f"  {note}"
        if self.sections:
            yield from columns(
                [("", "before", "after", "change"), *self.rows()], right=(1, 2)
            )

    def rows(self) -> Iterator[ComparisonRow]:
        """Yield the rows of all sections, each section under its title."""
        for title, rows in self.sections:
            yield ComparisonRow(title)
            for row in rows:
                yield row._replace(what=f"  {row.what}")

    @property
    def headline(self) -> str:
        """Return the main changes on one line: methods, outputs, size, delegation, SQNR."""
        changes = list(self._method_changes())
        for title, rows in self.sections:
            place = "" if title == "package" else f" of {title}"
            for row in rows:
                if row.change and row.what.startswith(_HEADLINES):
                    changes.append(f"{row.what}{place} {row.change}")
        # Changes that callers must adapt to come first.
        changes.sort(key=lambda change: not change.startswith(("method ", "output ")))
        titles = ", ".join(title for title, _ in self.sections)
        return listed(changes, _MOST_HEADLINES) or f"other {titles}"

    def _method_changes(self) -> Iterator[str]:
        for title, rows in self.sections:
            change = self.methods.get(title)
            if change == "renamed":
                row = rows[0]
                yield f"method {row.before} renamed to {row.after}"
            elif change is not None:
                yield f"method {title} {change}"

    def markdown(self) -> Iterator[str]:
        """Yield Markdown for a pull request: the main changes, then all in a folded table."""
        package = f"**`{self.package}`**"
        against = _escape(self.against)
        if self.change == "changed" and not self.same:
            yield f"{package}: {_escape(self.headline)}"
        else:
            yield f"{package}: {_escape(self._words)} {against}"
        for note in self.notes:
            yield from ("", f"> {_escape(note)}")
        if not self.sections:
            return
        yield from ("", f"<details><summary>compared with {against}</summary>", "")
        yield from self._table()
        yield from ("", "</details>")

    def _table(self) -> Iterator[str]:
        yield from ("| | before | after | change |", "| --- | ---: | ---: | --- |")
        for title, rows in self.sections:
            yield f"| **{_escape(title)}** | | | |"
            for row in rows:
                yield f"| {' | '.join(map(_escape, row))} |"


def describe_unchanged(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield a line of Markdown on the packages that equal the build that `against` names."""
    names: dict[str, list[str]] = {}
    for comparison in comparisons:
        package = f"**`{comparison.package}`**"
        names.setdefault(comparison.against, []).append(package)
    for against, packages in names.items():
        yield f"{', '.join(packages)}: no difference from {_escape(against)}"


def heading(comparisons: Sequence[Comparison], refused: int) -> str:
    """Return the heading over comparisons.

    It says how many of the packages in both builds changed, how many are only in one, and how many
    could not be compared.
    """
    numbers = dict.fromkeys(CHANGES, 0)
    unchanged = 0
    for comparison in comparisons:
        if comparison.same:
            unchanged += 1
        else:
            numbers[comparison.change] += 1
    changed = numbers.pop("changed")
    in_both = changed + unchanged + refused
    counts = []
    if in_both == 1 and not refused:
        counts.append("1 package changed" if changed else "No package changed")
    elif in_both:
        counts.append(f"{changed or 'None'} of {plural(in_both, 'package')} changed")
    for change, number in numbers.items():
        if number:
            counts.append(f"{number if counts else plural(number, 'package')} {change}")
    if refused:
        counts.append(f"{refused} not compared")
    return f"## {', '.join(counts)}"


def _escape(text: str) -> str:
    for mark in "\\|*_`<":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
