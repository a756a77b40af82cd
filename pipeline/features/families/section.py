"""The report section on families.

It shows what packages share, what that saves, and who loads which file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pipeline.report.cells import figure, name, names
from pipeline.report.colours import LEFT
from pipeline.report.elements import Chart, DataTable, Json, ReportSection, Row
from pipeline.report.formatting import percent
from pipeline.report.packages import Entry
from pipeline.store.errors import plural
from pipeline.store.sizes import human_size

Files = Mapping[str, tuple[str, int]]  # of a package: digest and bytes by name
Packages = Mapping[str, Files]
Piece = tuple[int, str, str]  # of a bar: bytes, colour and description

_MOST_BARS = 24
_MOST_CHARTS = 6  # on the page over all packages
_COLOURS = 7
_TOGETHER = "all together"


# A file that several packages have: its name, digest and bytes.
SharedFile = tuple[str, str, int]


def section(report: Json) -> ReportSection:
    """Return the section on a package's family for its report."""
    family = report.get("family")
    if not family:
        return ReportSection("family", "Family")
    packages: Packages = family["packages"]
    pages = {package: f"../{package}/report.html" for package in packages}
    return ReportSection(
        "family",
        f"Family {family['name']}",
        _describe(packages, family["base"]),
        _describe_payloads(report),
        make_chart(packages, pages),
        DataTable(
            "family", "What each package loads", list(_rows(packages, pages)), brief=20
        ),
    )


def overview_section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section on packages that share weights, family by family."""
    families: dict[str, dict[str, Files]] = {}
    pages: dict[str, str] = {}
    for entry in entries:
        record = (entry.report or {}).get("family")
        if record:
            packages = families.setdefault(record["name"], {})
            packages[entry.package] = record["packages"][entry.package]
            pages[entry.package] = entry.page
    rows: list[Row] = []
    drawn: list[Chart] = []
    for family, packages in sorted(families.items()):
        rows.append(summarize(family, packages))
        if len(drawn) < _MOST_CHARTS:
            drawn.append(make_chart(packages, pages, family))
    return ReportSection(
        "families", "Families", DataTable("families", "Families", rows), *drawn
    )


def _sizes(packages: Packages) -> tuple[int, int]:
    """Return the bytes of all packages separately, and together with shared files counted once."""
    apart = 0
    unique: dict[str, int] = {}
    for files in packages.values():
        for digest, size in files.values():
            apart += size
            unique[digest] = size
    return apart, sum(unique.values())


def _saved(apart: int, together: int) -> float:
    if apart:
        return 1 - together / apart
    return 0.0


def _split(packages: Packages) -> dict[str, tuple[list[SharedFile], int]]:
    """Return, for each package, the files that others also have, and the bytes of the rest."""
    holders: Counter[str] = Counter()
    for files in packages.values():
        holders.update(digest for digest, _ in files.values())
    splits: dict[str, tuple[list[SharedFile], int]] = {}
    for package, files in packages.items():
        shared: list[SharedFile] = []
        unshared = 0
        for file, (digest, size) in sorted(files.items()):
            if holders[digest] > 1:
                shared.append((file, digest, size))
            else:
                unshared += size
        splits[package] = shared, unshared
    return splits


def _unique(splits: Mapping[str, tuple[list[SharedFile], int]]) -> list[SharedFile]:
    unique: set[SharedFile] = set()
    for shared, _ in splits.values():
        unique.update(shared)
    return sorted(unique)


def _describe(packages: Packages, base: str | None) -> str:
    apart, together = _sizes(packages)
    saved = percent(_saved(apart, together))
    sentence = (
        f"{plural(len(packages), 'package')} of {human_size(apart)} apart, {human_size(together)} "
        f"together: sharing saves {saved}."
    )
    if base:
        sentence += (
            f" Only files of {base} are shared, so another package changes none."
        )
    return sentence


def _describe_payloads(report: Json) -> str | None:
    """Describe the size of delegates' payloads, which contain the weights of some backends."""
    payloads: dict[tuple[str, str], int] = {}
    for method in (report.get("contents") or {}).get("methods", {}).values():
        for delegate in method["delegates"]:
            payloads[delegate["digest"], delegate["backend"]] = delegate["size"]
    if not payloads:
        return None
    sizes: Counter[str] = Counter()
    for (_, backend), size in payloads.items():
        sizes[backend] += size
    amounts = [
        f"{backend} {human_size(size)}" for backend, size in sorted(sizes.items())
    ]
    where = "Payloads of delegates stay in each package, with all weights inside them"
    return f"{where}: {', '.join(amounts)}."


def make_chart(packages: Packages, pages: Mapping[str, str], family: str = "") -> Chart:
    """Draw which files are loaded: a bar per package, on one scale, and one for all together."""
    splits = _split(packages)
    files = _unique(splits)
    colours: dict[str, str] = {}
    legend: list[tuple[str, str]] = []
    for number, (file, digest, size) in enumerate(files):
        colours[digest] = f"var(--c{number % _COLOURS})"
        legend.append((f"{file} {human_size(size)}", colours[digest]))
    legend.append(("a package's own", LEFT))
    largest = set(sorted(splits, key=lambda package: -splits[package][1])[:_MOST_BARS])
    bars = {_TOGETHER: (files, sum(unshared for _, unshared in splits.values()))}
    for package, split in splits.items():
        if package in largest:
            bars[package] = split
    rows: dict[str, list[Piece]] = {}
    links: dict[str, str] = {}
    totals: list[int] = []
    for package, (shared, unshared) in bars.items():
        pieces = list(_pieces(package, shared, unshared, colours))
        totals.append(sum(size for size, _, _ in pieces))
        rows[f"{package}  {human_size(totals[-1])}"] = pieces
        page = pages.get(package)
        if page:
            links |= {words: page for _, _, words in pieces}
    about = "An app stores each shared file (one colour each) once; grey is one package's own."
    if len(largest) < len(splits):
        about += f" The {len(largest)} of {len(splits)} that add most."
    apart, together = map(human_size, _sizes(packages))
    return Chart(
        f"What each package of {family} loads."
        if family
        else "What each package loads.",
        about,
        legend,
        f"Files of {plural(len(splits), 'package')}: {apart} apart, {together} together",
        "bars",
        {"rows": rows, "whole": max(totals)},
        links,
    )


def _pieces(
    package: str,
    shared: Iterable[SharedFile],
    unshared: int,
    colours: Mapping[str, str],
) -> Iterator[Piece]:
    for file, digest, size in shared:
        words = f"{package}: {file} {human_size(size)}"
        yield size, colours[digest], words
    yield unshared, LEFT, f"{package}: its own {human_size(unshared)}"


def _rows(packages: Packages, pages: Mapping[str, str]) -> Iterator[Row]:
    for package, (shared, unshared) in _split(packages).items():
        common = sum(size for _, _, size in shared)
        files = ", ".join(file for file, _, _ in shared)
        yield {
            "package": name(package, href=pages[package]),
            "its own": figure(unshared, human_size),
            "shared": figure(common, human_size, note=files),
            "all": figure(unshared + common, human_size),
        }


def summarize(family: str, packages: Packages) -> Row:
    """Return a family's row in the table of all families."""
    apart, together = _sizes(packages)
    saved = _saved(apart, together)
    return {
        "family": name(family),
        "packages": figure(len(packages)),
        "apart": figure(apart, human_size),
        "together": figure(together, human_size),
        "saved": figure(saved, percent, bar=saved),
        "shared files": names(file for file, _, _ in _unique(_split(packages))),
    }
