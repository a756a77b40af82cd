"""Ranks the changes in a package that another toolchain builds, the worst first.

It knows the records of both builds, but no plan; nothing is built here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.report.records import delegated_share, describe_left
from pipeline.report.verdicts import VERDICTS, package_verdict
from pipeline.store.errors import listed, plural

Json = Mapping[str, Any]
# The ranks of changes, the worst first; improvements and mere information come last.
BROKEN, DELEGATION, MEMORY, SIZE, NUMERICS, LATENCY, WARNINGS, TOLD = range(8)
_SQNR_STEP = 1.0  # dB; smaller differences between builds get no line
_SLOWER = 1.25  # times the median, and its ratio to the source's, if the quartiles don't overlap
_MORE_PEAK = 1.2  # times the peak of lowering, which varies from run to run
_MOST_ERRORS = 3


class PackageChanges:
    """The changes of a package.

    Attributes:
        lines: sentences with their ranks, the worst first.
        bytes: "equal", the sections that differ, or "" if one side was not built.
        peaks: the peak memory of lowering, before and after, in bytes; 0 if unknown.
        details: lines of Markdown with the whole comparison.
    """

    def __init__(
        self,
        package: str,
        lines: Sequence[tuple[int, str]],
        bytes_: str,
        peaks: tuple[int, int] = (0, 0),
    ) -> None:
        self.package = package
        self.lines: list[tuple[int, str]] = []
        self.bytes = bytes_
        self.peaks = peaks
        self.details: list[str] = []
        self.add(*lines)

    def add(self, *lines: tuple[int, str]) -> None:
        """Add sentences with their ranks."""
        self.lines = sorted([*self.lines, *lines], key=lambda line: line[0])

    @property
    def rank(self) -> int:
        """Return the rank of the worst change."""
        return min((rank for rank, _ in self.lines), default=TOLD)

    @property
    def is_equal(self) -> bool:
        """Return whether there is no change worth a line."""
        return self.bytes == "equal" and not self.lines


def find_changes(package: str, old: Json, new: Json) -> PackageChanges:
    """Compare the two sides of a package: records as `upgrade.read_side` returns them."""
    lines = list(_compare_outcomes(old, new))
    if old["build"] is None or new["build"] is None:
        return PackageChanges(package, lines, "")
    for name, before in old["build"]["figures"]["methods"].items():
        after = new["build"]["figures"]["methods"].get(name)
        if after is None:
            lines.append((BROKEN, f"{name}: the method no longer exists"))
            continue
        delegation = new["build"]["manifest"]["methods"][name]["delegation"]
        for rank, sentence in _compare_methods(before, after, delegation):
            lines.append((rank, f"{name}: {sentence}"))
    lines += _compare_sizes(old["build"], new["build"])
    if old["report"] and new["report"]:
        lines += _compare_warnings(old["report"], new["report"])
    peaks = old["cost"][1], new["cost"][1]
    return PackageChanges(package, lines, _compare_bytes(old, new), peaks)


# Whether it builds and passes


def _compare_outcomes(old: Json, new: Json) -> Iterator[tuple[int, str]]:
    """Yield a change if a package no longer builds or passes, or if it now does."""
    if old["build"] is None and new["build"] is None:
        yield TOLD, f"builds with neither: {_describe_errors(new)}"
    elif new["build"] is None:
        yield BROKEN, f"no longer builds: {_describe_errors(new)}"
    elif old["build"] is None:
        yield TOLD, f"builds now; previously: {_describe_errors(old)}"
    else:
        yield from _compare_verdicts(old, new)


def _describe_errors(side: Json) -> str:
    """Return the reasons why a package was not built."""
    errors = []
    for action in side["errors"]:
        place = action["package"] or action["model"]
        method = f"/{action['method']}" if action["method"] else ""
        errors.append(f"{action['kind']} {place}{method}: {action['error']}")
    return listed(errors, _MOST_ERRORS) or "it was not run"


def _compare_verdicts(old: Json, new: Json) -> Iterator[tuple[int, str]]:
    before, after = _verdict(old), _verdict(new)
    if before == after:
        return
    sentence = f"{after}, was {before}"
    reasons = [*(new["report"] or {}).get("failures", ())]
    reasons += [action["error"] for action in new["errors"]]
    if reasons:
        sentence += f": {listed(reasons, _MOST_ERRORS)}"
    order: dict[str, int] = {verdict: place for place, verdict in enumerate(VERDICTS)}
    is_worse = order.get(after, -1) < order.get(before, -1)
    yield (BROKEN if is_worse else TOLD), sentence


def _verdict(side: Json) -> str:
    """Return the verdict on a package; "failed" or "not validated" if its validation gave none."""
    report = side["report"]
    if report is None or any(action["kind"] == "validate" for action in side["errors"]):
        return "failed" if report else "not validated"
    return package_verdict(report)


# Figures


def _compare_methods(
    before: Json, after: Json, delegation: Json
) -> Iterator[tuple[int, str]]:
    yield from _compare_delegation(before, after, delegation)
    yield from _compare_memory(before, after)
    yield from _compare_numerics(before, after)
    yield from _compare_latency(before, after)


def _compare_delegation(
    before: Json, after: Json, delegation: Json
) -> Iterator[tuple[int, str]]:
    """Yield the operators that delegates no longer take, or that they now take."""
    for operator in sorted({*before["left"], *after["left"]}):
        old = before["left"].get(operator, 0)
        new = after["left"].get(operator, 0)
        if new > old:
            why = describe_left(delegation, operator)
            yield (
                DELEGATION,
                f"{plural(new - old, 'more call')} of {operator} left undelegated{why}",
            )
        elif new < old:
            yield TOLD, f"{plural(old - new, 'more call')} of {operator} delegated"
    nodes = _count_nodes(before), _count_nodes(after)
    if nodes[0] != nodes[1]:
        rank = DELEGATION if _share(after) < _share(before) else TOLD
        texts = [f"{inside} of {whole}" for inside, whole in nodes]
        yield rank, f"{texts[1]} nodes delegated, were {texts[0]}"
    if before["partitions"] != after["partitions"]:
        counts = [_describe_partitions(figures) for figures in (before, after)]
        yield TOLD, f"partitions: {counts[1]}, were {counts[0]}"


def _count_nodes(figures: Json) -> tuple[int, int]:
    """Return the number of delegated nodes of a method, and of all its nodes."""
    return figures["delegated_nodes"], figures["nodes"]


def _share(figures: Json) -> float:
    share = delegated_share([figures])
    if share is None:
        return 1.0
    return share


def _describe_partitions(figures: Json) -> str:
    counts = [
        f"{number} of {backend}" for backend, number in figures["partitions"].items()
    ]
    return ", ".join(counts) or "none"


def _compare_memory(before: Json, after: Json) -> Iterator[tuple[int, str]]:
    old, new = before["planned_memory"], after["planned_memory"]
    if old is not None and new is not None and old != new:
        rank = MEMORY if new > old else TOLD
        yield rank, f"planned memory {describe_growth(old, new)}"


def _compare_numerics(before: Json, after: Json) -> Iterator[tuple[int, str]]:
    """Yield the outputs that moved away from their source, or closer to it."""
    pairs = zip(before["sqnr_db"] or (), after["sqnr_db"] or (), strict=False)
    for place, (old, new) in enumerate(pairs):
        if old is None or new is None or abs(new - old) < _SQNR_STEP:
            continue
        rank = NUMERICS if new < old else TOLD
        yield rank, f"output {place}: SQNR {new:g} dB, was {old:g} dB"


def _compare_latency(before: Json, after: Json) -> Iterator[tuple[int, str]]:
    """Yield a change of latency that is more than noise."""
    old, new = before["latency"], after["latency"]
    if old is None or new is None:
        return
    texts = f"{new['median']:.3g} ms, was {old['median']:.3g} ms"
    # The source's time, measured in the same minute, tells a slow method from a busy machine.
    is_slower = new["ratio"] > _SLOWER * old["ratio"]
    is_faster = old["ratio"] > _SLOWER * new["ratio"]
    if (
        is_slower
        and new["median"] > _SLOWER * old["median"]
        and new["low"] > old["high"]
    ):
        yield LATENCY, f"slower: {texts}"
    elif (
        is_faster
        and old["median"] > _SLOWER * new["median"]
        and old["low"] > new["high"]
    ):
        yield TOLD, f"faster: {texts}"


def _compare_sizes(old: Json, new: Json) -> Iterator[tuple[int, str]]:
    before, after = old["figures"]["size"], new["figures"]["size"]
    if before != after:
        rank = SIZE if after > before else TOLD
        yield rank, f"size {describe_growth(before, after)}"


def compare_peaks(changes: Sequence[PackageChanges]) -> str:
    """Compare the peak memory of lowering under both toolchains.

    If it grows in most packages, the toolchain itself takes more, to import for instance, and the
    returned sentence says so. Otherwise each package in which it changes gets a line, and the
    sentence is empty.
    """
    growing, shrinking = [], []
    for change in changes:
        before, after = change.peaks
        if before and after > _MORE_PEAK * before:
            growing.append(change)
        elif after and before > _MORE_PEAK * after:
            shrinking.append(change)
    if len(growing) > max(1, len(changes) // 2):
        return _describe_common_growth(growing, len(changes))
    for rank, concerned in ((MEMORY, growing), (TOLD, shrinking)):
        for change in concerned:
            change.add(
                (rank, f"peak memory of lowering {describe_growth(*change.peaks)}")
            )
    return ""


def _describe_common_growth(growing: Sequence[PackageChanges], number: int) -> str:
    shares = sorted(
        after / before - 1 for before, after in (change.peaks for change in growing)
    )
    before, after = max(
        (change.peaks for change in growing), key=lambda peaks: peaks[1]
    )
    growth = f"{100 * shares[0]:+.0f} % to {100 * shares[-1]:+.0f} %"
    return (
        f"peak memory of lowering: {growth} in {len(growing)} of {plural(number, 'package')}; "
        f"at most {after:,} bytes, was {before:,}"
    )


def describe_growth(before: int, after: int) -> str:
    """Describe how a number of bytes changed."""
    share = f", {100 * (after / before - 1):+.1f} %" if before else ""
    return f"{after:,} bytes, was {before:,} ({after - before:+,}{share})"


# Warnings and bytes


def _compare_warnings(old: Json, new: Json) -> Iterator[tuple[int, str]]:
    """Yield the warnings of lowering that are new, and those that have gone."""
    before, after = _find_warnings(old), _find_warnings(new)
    for sentence in after:
        if sentence not in before:
            yield WARNINGS, f"new warning: {sentence}"
    for sentence in before:
        if sentence not in after:
            yield TOLD, f"warning gone: {sentence}"


def _find_warnings(report: Json) -> dict[str, None]:
    sentences: dict[str, None] = {}
    for method, warnings in report.get("warnings", {}).items():
        for warning in warnings:
            sentences[f"{method}: {warning['what']}"] = None
    return sentences


def _compare_bytes(old: Json, new: Json) -> str:
    """Return "equal", or the sections of the package that differ."""
    files = []
    for side in (old, new):
        manifest = side["build"]["manifest"]["files"]
        files.append({name: file["digest"] for name, file in manifest.items()})
    if files[0] == files[1]:
        return "equal"
    sections = [_find_sections(side["contents"]) for side in (old, new)]
    differing = []
    for kind in sorted({*sections[0], *sections[1]}):
        if sections[0].get(kind) != sections[1].get(kind):
            differing.append(kind.replace("_", " "))
    return f"differ in {listed(differing)}" if differing else "differ"


def _find_sections(contents: Json | None) -> dict[str, list[str]]:
    """Return the digests of a package's segments by kind."""
    sections: dict[str, list[str]] = {}
    for segment in (contents or {}).get("segments", ()):
        if segment["kind"] != "padding":
            sections.setdefault(segment["kind"], []).append(segment["digest"])
    return sections
