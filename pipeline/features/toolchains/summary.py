"""The report of an upgrade, as text for a terminal and as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from pipeline.features.toolchains.changes import TOLD, PackageChanges
from pipeline.store.errors import plural

Versions = Mapping[str, tuple[str, str]]
# For each build of a package and each runtime, whether the build runs there.
Runs = Mapping[str, Mapping[str, str]]
_NONE: Runs = MappingProxyType({})
_MARKS = "\\|*_`<"


def write_text(
    name: str,
    versions: Versions,
    changes: Sequence[PackageChanges],
    runs: Runs = _NONE,
    everywhere: str = "",
) -> Iterator[str]:
    """Yield the lines of the report for a terminal.

    `everywhere` is a sentence on a change that most packages share.
    """
    yield ""
    yield _heading(name, versions)
    if everywhere:
        yield everywhere
    worse, better, equal = _sort(changes)
    for title, packages in (("worse", worse), ("other changes", better)):
        if packages:
            yield f"{title}:"
        for change in packages:
            yield f"  {change.package}{_describe_bytes(change)}"
            for _, sentence in change.lines:
                yield f"    {sentence}"
    if equal:
        yield f"identical: {_describe_equal(equal)}"
    yield from _describe_runs(runs)


def write_markdown(
    name: str,
    versions: Versions,
    changes: Sequence[PackageChanges],
    runs: Runs = _NONE,
    everywhere: str = "",
) -> Iterator[str]:
    """Yield the lines of the report for a pull request: regressions, other changes, equal packages.

    `everywhere` is a sentence on a change that most packages share.
    """
    worse, better, equal = _sort(changes)
    yield f"## {_escape(_heading(name, versions))}"
    counts = [
        f"{len(worse)} worse",
        f"{len(better)} otherwise changed",
        f"{len(equal)} identical",
    ]
    yield from ("", f"{plural(len(changes), 'package')}: {', '.join(counts)}.")
    if everywhere:
        yield from ("", _escape(f"{everywhere[0].upper()}{everywhere[1:]}."))
    for title, packages in (("Worse", worse), ("Other changes", better)):
        if packages:
            yield from ("", f"### {title}")
        for change in packages:
            yield from (
                "",
                f"**`{change.package}`**{_escape(_describe_bytes(change))}",
                "",
            )
            for _, sentence in change.lines:
                yield f"- {_escape(sentence)}"
            if change.details:
                yield from ("", *change.details)
    if equal:
        yield from ("", "### Identical", "", _escape(_describe_equal(equal)))
    if runs:
        yield from ("", "### Runtimes", "")
        yield from (f"- {_escape(line)}" for line in _describe_runs(runs))


def _heading(name: str, versions: Versions) -> str:
    """Return the headline of the comparison, with the versions that differ."""
    pairs = [f"{library} {old} to {new}" for library, (old, new) in versions.items()]
    return f"upgrade to {name}: {', '.join(pairs) or 'the same versions'}"


def _sort(
    changes: Sequence[PackageChanges],
) -> tuple[list[PackageChanges], list[PackageChanges], list[PackageChanges]]:
    """Return the packages that got worse (the worst first), changed otherwise, and stayed equal."""
    ranked = sorted(changes, key=lambda change: change.rank)
    worse = [change for change in ranked if change.rank < TOLD]
    better = [
        change for change in ranked if change.rank == TOLD and not change.is_equal
    ]
    equal = [change for change in ranked if change.is_equal]
    return worse, better, equal


def _describe_bytes(change: PackageChanges) -> str:
    return f": bytes {change.bytes}" if change.bytes else ""


def _describe_equal(changes: Sequence[PackageChanges]) -> str:
    names = ", ".join(change.package for change in changes)
    return f"{plural(len(changes), 'package')} ({names})"


def _describe_runs(runs: Runs) -> Iterator[str]:
    """Yield a line per package that doesn't run alike everywhere, and one for all the others."""
    everywhere = []
    runtimes: dict[str, None] = {}
    for package, outcomes in runs.items():
        runtimes |= dict.fromkeys(outcomes)
        if {*outcomes.values()} == {"yes"}:
            everywhere.append(package)
        else:
            words = [f"{runtime} {outcome}" for runtime, outcome in outcomes.items()]
            yield f"{package} runs in: {', '.join(words)}"
    if everywhere:
        yield f"run in {', '.join(runtimes)}: {plural(len(everywhere), 'package')}"


def _escape(text: str) -> str:
    for mark in _MARKS:
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
