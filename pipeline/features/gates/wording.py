"""Descriptions of measurements: what grew, which calls are left to kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pipeline.features.gates.figures import share_of
from pipeline.features.gates.gate import GateSubject, Json, Measured
from pipeline.report.formatting import percent
from pipeline.report.records import describe_left, name_kernels
from pipeline.store.errors import listed

Increase = tuple[str, int | None, int]  # a name, and the figures before and now
MOST = 5  # changes of a kind to name in a sentence
NAME_FAMILY = "give it a `family`"


def describe_growth(package: GateSubject) -> str:
    """Describe which kinds of segments, methods and tensors grew since the baseline."""
    segments, methods, tensors = zip(
        _sizes(package.before), _sizes(package.now), strict=True
    )
    # A baseline names only the largest tensors, so a smaller one may not be new.
    least = min(tensors[0].values(), default=math.inf)
    new_tensors = []
    for increase in _increases(*tensors):
        _, before, size = increase
        if before is not None or size > least:
            new_tensors.append(increase)
    grown = {
        "grew": _increases(*segments),
        "methods": _increases(*methods),
        "tensors": new_tensors,
    }
    sentences = []
    for noun, increases in grown.items():
        if increases:
            sentences.append(
                f"{noun}: {listed(map(_describe_increase, increases), MOST)}"
            )
    return "; ".join(sentences)


def find_own_files(family: Json, package: str) -> dict[str, int]:
    """Return the sizes in bytes of the files that no other package of the family has."""
    other_contents = set()
    for member, files in family.items():
        if member != package:
            other_contents |= {content for content, _ in files.values()}
    sizes = {}
    for name, (content, size) in family[package].items():
        if content not in other_contents:
            sizes[name] = size
    return sizes


def describe_own_files(package: GateSubject) -> str:
    sizes = {
        member: sum(find_own_files(package.family, member).values())
        for member in package.family
    }
    largest = sorted(sizes.items(), key=lambda pair: (-pair[1], pair[0]))
    return "their own: " + listed(
        (f"{member} {size}" for member, size in largest), MOST
    )


def describe_calls(method: GateSubject, calls: Mapping[str, int]) -> str:
    """List calls of operators, with the reasons why no delegate took them."""
    delegation = method.facts["delegation"]
    words = []
    for name, count in calls.items():
        words.append(f"{name} x{count}{describe_left(delegation, name)}")
    return ", ".join(words)


def describe_newly_left(method: GateSubject, words: str, reasons: bool = True) -> str:
    """Describe the calls now left to kernels that were not in the baseline, with `reasons`."""
    if method.before is None:
        return ""
    delegation = method.facts["delegation"] if reasons else {}
    calls = []
    for name, before, count in _increases(method.before["left"], method.now["left"]):
        was = f" (was x{before})" if before else ""
        calls.append(f"{name} x{count}{was}{describe_left(delegation, name)}")
    if calls:
        return f"; newly left {words}: {listed(calls, MOST)}"
    return ""


def _describe_increase(increase: Increase) -> str:
    name, before, size = increase
    if before is None:
        return f"{name} is new, {size:,} bytes"
    return f"{name} by {size - before:,} bytes to {size:,}"


def _sizes(figures: Json) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Return the bytes of segments, methods (if known) and tensors, each by name."""
    methods = {}
    for name, method in figures["methods"].items():
        if method["constants"] is not None or method["delegated"] is not None:
            methods[name] = (method["constants"] or 0) + (method["delegated"] or 0)
    tensors = {name: tensor["size"] for name, tensor in figures["tensors"].items()}
    return figures["segments"], methods, tensors


def _increases(before: Mapping[str, int], after: Mapping[str, int]) -> list[Increase]:
    """Return the sizes that increased, with the greatest increase first."""
    increases: list[Increase] = []
    for name, size in after.items():
        if size > before.get(name, 0):
            increases.append((name, before.get(name), size))

    def rank(increase: Increase) -> tuple[int, str]:
        name, size_before, size = increase
        return (size_before or 0) - size, name

    return sorted(increases, key=rank)


def measure_delegated(method: GateSubject, noun: str, limit: float) -> Measured:
    """Measure the share of a method's `nodes` or `operators` that delegates run."""
    share = share_of(method.now, noun)
    undelegated = describe_calls(method, method.now["left"])
    kernels = name_kernels(method.now["left"])
    newly = describe_newly_left(method, "since the baseline", reasons=False)
    return share, (
        f"{percent(share)} of {noun} delegated, at least {percent(limit)} required; left to "
        f"{kernels}: {undelegated or 'none'}{newly}"
    )
