"""Families: what their packages share, what that saves, and who loads which file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pipeline.report import charts
from pipeline.report.cells import figure, name, names
from pipeline.report.elements import Chart, DataTable, Json, ReportSection, Row
from pipeline.report.formatting import percent
from pipeline.store.errors import plural
from pipeline.store.sizes import human_size

Files = Mapping[str, tuple[str, int]]  # of a package: digest and bytes by name
Packages = Mapping[str, Files]

_MOST_BARS = 24
_COLOURS = 7
_TOGETHER = "all together"


class Shared(NamedTuple):
    """A file that several packages have; `size` is in bytes."""

    name: str
    digest: str
    size: int


def section(report: Json) -> ReportSection:
    """Return the section of a package's family in its report."""
    if not (family := report.get("family")):
        return ReportSection("family", "Family")
    packages: Packages = family["packages"]
    pages = {each: f"../{each}/report.html" for each in packages}
    return ReportSection(
        "family",
        f"Family {family['name']}",
        _describe(packages, family["base"]),
        _describe_payloads(report),
        make_chart(packages, pages),
        DataTable("family", "Who loads what", list(_rows(packages, pages)), brief=20),
    )


def _sizes(packages: Packages) -> tuple[int, int]:
    """Return the bytes of all packages apart, and together, with what they share once."""
    every = [each for files in packages.values() for each in files.values()]
    unique = dict(every)
    return sum(size for _, size in every), sum(unique.values())


def _saved(apart: int, together: int) -> float:
    return 1 - together / apart if apart else 0.0


def _split(packages: Packages) -> dict[str, tuple[list[Shared], int]]:
    """Return for each package the files that others have too, and the bytes of its own."""
    holders = Counter(digest for files in packages.values() for digest, _ in files.values())
    found: dict[str, tuple[list[Shared], int]] = {}
    for package, files in packages.items():
        shared = [Shared(n, *each) for n, each in sorted(files.items()) if holders[each[0]] > 1]
        own = sum(size for digest, size in files.values() if holders[digest] == 1)
        found[package] = shared, own
    return found


def _unique(split: Mapping[str, tuple[list[Shared], int]]) -> list[Shared]:
    return sorted({each for shared, _ in split.values() for each in shared})


def _describe(packages: Packages, base: str | None) -> str:
    apart, together = _sizes(packages)
    said = (
        f"{plural(len(packages), 'package')} of {human_size(apart)} apart, {human_size(together)} "
        f"together: sharing saves {percent(_saved(apart, together))}."
    )
    stays = f" What {base} holds is shared, so a further package changes no shared file."
    return said + (stays if base else "")


def _describe_payloads(report: Json) -> str | None:
    """Say how much stands in delegates' payloads, where some backends keep weights."""
    methods = (report.get("contents") or {}).get("methods", {})
    sizes: Counter[str] = Counter()
    payloads = {
        (d["digest"], d["backend"], d["size"]) for m in methods.values() for d in m["delegates"]
    }
    for _, backend, size in payloads:
        sizes[backend] += size
    kept = ", ".join(f"{backend} {human_size(size)}" for backend, size in sorted(sizes.items()))
    return (
        f"Payloads of delegates stay in each package, with all weights inside them: {kept}."
        if kept
        else None
    )


def make_chart(packages: Packages, pages: Mapping[str, str], family: str = "") -> Chart:
    """Draw who loads what: a bar for each package, on one scale, and one for all together."""
    split = _split(packages)
    files = _unique(split)
    colours = {each.digest: f"var(--c{n % _COLOURS})" for n, each in enumerate(files)}
    largest = set(sorted(split, key=lambda each: -split[each][1])[:_MOST_BARS])
    bars = {_TOGETHER: (files, sum(own for _, own in split.values()))}
    bars |= {each: own for each, own in split.items() if each in largest}
    drawn = {each: list(_pieces(each, *own, colours)) for each, own in bars.items()}
    totals = {each: sum(size for size, _, _ in pieces) for each, pieces in drawn.items()}
    left_out = f" The {len(largest)} of {len(split)} that add most."
    apart, together = map(human_size, _sizes(packages))
    legend = [(f"{each.name} {human_size(each.size)}", colours[each.digest]) for each in files]
    rows = {f"{each}  {human_size(totals[each])}": pieces for each, pieces in drawn.items()}
    return Chart(
        f"Who loads what in {family}." if family else "Who loads what.",
        "A shared file has one colour, and an app has it once; grey is what only one has."
        + (left_out if len(largest) < len(split) else ""),
        [*legend, ("a package's own", charts.LEFT)],
        f"Files of {plural(len(split), 'package')}: {apart} apart, {together} together",
        charts.bars(rows, whole=max(totals.values())),
        {words: pages[e] for e in drawn if pages.get(e) for _, _, words in drawn[e]},
    )


def _pieces(
    package: str, shared: Iterable[Shared], own: int, colours: Mapping[str, str]
) -> Iterator[tuple[int, str, str]]:
    for each in shared:
        words = f"{package}: {each.name} {human_size(each.size)}"
        yield each.size, colours[each.digest], words
    yield own, charts.LEFT, f"{package}: its own {human_size(own)}"


def _rows(packages: Packages, pages: Mapping[str, str]) -> Iterator[Row]:
    for package, (shared, own) in _split(packages).items():
        common = sum(each.size for each in shared)
        yield {
            "package": name(package, href=pages[package]),
            "its own": figure(own, human_size),
            "shared": figure(common, human_size, note=", ".join(each.name for each in shared)),
            "all": figure(own + common, human_size),
        }


def summarize(family: str, packages: Packages) -> Row:
    """Return the row of a family in the table of all."""
    apart, together = _sizes(packages)
    saved = _saved(apart, together)
    return {
        "family": name(family),
        "packages": figure(len(packages)),
        "apart": figure(apart, human_size),
        "together": figure(together, human_size),
        "saved": figure(saved, percent, bar=saved),
        "shared files": names(each.name for each in _unique(_split(packages))),
    }
