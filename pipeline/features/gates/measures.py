"""Measures gates: the figure of a package or a method, and the sentence if it breaks its limit.

Knows records of a build and an accepted baseline; it does not know which gates are set, nor when
one is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from pipeline.features.gates.runs_on import (
    Method,
    Runtime,
    find_method_misfits,
    find_package_misfits,
    measure_misfits,
)
from pipeline.report.formatting import percent
from pipeline.report.records import name_kernels
from pipeline.store.errors import listed, plural
from pipeline.validate.figures import Figures, describe_left, output_names

Json = Mapping[str, Any]
# The figure, None where it is not known, and what is to be said if the gate fails.
Measured = tuple[float | None, str]
Increase = tuple[str, int | None, int]  # a name, and the figures before and now
ROUNDING = 1e-12  # of figures: 0.9 - 0.85 is more than 0.05
NOTHING: Json = MappingProxyType({})
_MOST = 5  # changes of a kind that a sentence names
_NAME_FAMILY = "give it a `family`"


class Subject(NamedTuple):
    """The package, or one of its methods: its figures now and in the baseline, its records, the
    files of its family (`keys.FamilyFiles`), its contract, where it is known, with the calls that
    delegates left, and what runtimes hold by target."""

    package: str
    method: str | None
    now: Any
    before: Any
    facts: Json
    run: Json
    arenas: Iterable[Json]
    family: Json = NOTHING
    contract: Json | None = None
    left: Sequence[Json] = ()
    targets: Json = NOTHING


def measure_size(package: Subject, limit: int) -> Measured:
    size = package.now.size
    if package.before is not None:
        more = _growth(package) or "no part of it grew since the baseline"
    else:
        parts = sorted(package.now.segments.items(), key=lambda pair: -pair[1])
        more = ", ".join(f"{kind} {n:,}" for kind, n in parts)
    return size, f"the package has {size:,} bytes, at most {limit:,} wanted; {more}"


def measure_size_growth(package: Subject, limit: float) -> Measured:
    size = package.now.size
    before = package.before.size
    growth = size / before - 1
    sentence = f"the package grew by {percent(growth)} since the baseline, from {before:,}"
    return (
        growth,
        f"{sentence} to {size:,} bytes, at most {percent(limit)} wanted; {_growth(package)}",
    )


def measure_family_size(package: Subject, limit: int) -> Measured:
    if not package.family:
        return None, f"it has no family, whose size max_family_size limits; {_NAME_FAMILY}"
    sizes = {content: n for files in package.family.values() for content, n in files.values()}
    size = sum(sizes.values())
    sentence = f"the {plural(len(package.family), 'package')} of the family have {size} bytes"
    return size, f"{sentence}, at most {limit} wanted; {_describe_own_files(package)}"


def measure_added_size(package: Subject, limit: int) -> Measured:
    if not package.family:
        return None, f"it has no family, to which max_added_size is added; {_NAME_FAMILY}"
    own_files = _own_files(package.family, package.package)
    size = sum(own_files.values())
    named = ", ".join(f"{name} {n}" for name, n in own_files.items())
    sentence = f"the package adds {size} bytes to its family, at most {limit} wanted"
    return size, f"{sentence}; its own are {named}"


def _own_files(family: Json, package: str) -> dict[str, int]:
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


def _describe_own_files(package: Subject) -> str:
    sizes = {member: sum(_own_files(package.family, member).values()) for member in package.family}
    largest = sorted(sizes.items(), key=lambda pair: (-pair[1], pair[0]))
    return "their own: " + listed((f"{member} {size}" for member, size in largest), _MOST)


def _growth(package: Subject) -> str:
    """Describe which kinds of segments, methods and tensors grew since the baseline."""
    segments, methods, tensors = zip(_sizes(package.before), _sizes(package.now), strict=True)
    # A baseline names the largest tensors only, so a smaller one may not be new.
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
            sentences.append(f"{noun}: {listed(map(_describe_increase, increases), _MOST)}")
    return "; ".join(sentences)


def _describe_increase(increase: Increase) -> str:
    name, before, size = increase
    if before is None:
        return f"{name} is new, {size:,} bytes"
    return f"{name} by {size - before:,} bytes to {size:,}"


def _sizes(figures: Figures) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Return bytes of segments, of methods as far as they are known, and of tensors, by name."""
    methods = {}
    for name, method in figures.methods.items():
        if method.constants is not None or method.delegated is not None:
            methods[name] = (method.constants or 0) + (method.delegated or 0)
    tensors = {name: tensor.size for name, tensor in figures.tensors.items()}
    return figures.segments, methods, tensors


def _increases(before: Mapping[str, int], after: Mapping[str, int]) -> list[Increase]:
    """Return what is more than before, the greatest increase first."""
    increases: list[Increase] = []
    for name, size in after.items():
        if size > before.get(name, 0):
            increases.append((name, before.get(name), size))

    def rank(increase: Increase) -> tuple[int, str]:
        name, size_before, size = increase
        return (size_before or 0) - size, name

    return sorted(increases, key=rank)


def measure_delegated(noun: str, method: Subject, limit: float) -> Measured:
    share = method.now.share(noun)
    undelegated = _describe_calls(method, method.now.left)
    kernels = name_kernels(method.now.left)
    newly = _newly_left(method, "since the baseline", reasons=False)
    return share, (
        f"{percent(share)} of {noun} delegated, at least {percent(limit)} wanted; left to "
        f"{kernels}: {undelegated or 'none'}{newly}"
    )


def _describe_calls(method: Subject, calls: Mapping[str, int]) -> str:
    """List calls of operators with the reasons why they are left."""
    delegation = method.facts["delegation"]
    words = []
    for name, count in calls.items():
        words.append(f"{name} x{count}{describe_left(delegation, name)}")
    return ", ".join(words)


def _newly_left(method: Subject, words: str, reasons: bool = True) -> str:
    """Describe the calls left to kernels now that were not in the baseline, with `reasons`."""
    if method.before is None:
        return ""
    delegation = method.facts["delegation"] if reasons else {}
    calls = []
    for name, before, count in _increases(method.before.left, method.now.left):
        was = f" (was x{before})" if before else ""
        calls.append(f"{name} x{count}{was}{describe_left(delegation, name)}")
    if calls:
        return f"; newly left {words}: {listed(calls, _MOST)}"
    return ""


def measure_portable(method: Subject, allowed: Iterable[str]) -> Measured:
    patterns = [pattern.removesuffix(".default") for pattern in allowed]
    refused = {}
    for name, calls in method.now.left.items():
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            refused[name] = calls
    permitted = "none may be"
    if patterns:
        permitted = f"only {', '.join(patterns)} may be"
    newly = _newly_left(method, "since the baseline", reasons=False)
    kernels = name_kernels(method.now.left)
    words = _describe_calls(method, refused)
    return sum(refused.values()), f"left to {kernels}, where {permitted}: {words}{newly}"


def measure_memory(method: Subject, limit: int) -> Measured:
    planned = method.now.planned_memory
    if planned is None:
        return None, (
            "its planned memory is not known, since there is no contents.json; "
            f"`doit -a lower:{method.package}` makes it"
        )
    sentence = f"plans {planned:,} bytes of memory, at most {limit:,} wanted"
    arenas = []
    for a in method.arenas:
        if a["size"]:
            arenas.append(f"arena {a['arena']}: {a['size']:,}")
    if len(arenas) > 1:
        sentence += f"; {', '.join(arenas)}"
    if method.before and method.before.planned_memory is not None:
        sentence += f"; {method.before.planned_memory:,} in the baseline"
    return planned, sentence


def measure_runs_package(package: Subject, names: Iterable[str]) -> Measured:
    find = partial(find_package_misfits, package.contract or {})
    runtimes = [Runtime(name, package.targets[name]) for name in names]
    return measure_misfits(package.package, package.contract, runtimes, find)


def measure_runs_method(method: Subject, names: Iterable[str]) -> Measured:
    needs = Method(method.package, method.facts, method.contract or {}, tuple(method.left))
    runtimes = [Runtime(name, method.targets[name]) for name in names]
    find = partial(find_method_misfits, needs)
    return measure_misfits(method.package, method.contract, runtimes, find)


def measure_latency(method: Subject, limit: float) -> Measured:
    latency = method.run.get("latency")
    if not latency:
        return None, "its latency was not measured, and max_latency_ratio limits it"
    ratio = latency["ratio"]
    ours, source = (latency[name]["median"] for name in ("steady_ms", "source_ms"))
    what = f"takes {ratio:.2f} times as long as its source ({ours:.3g} ms against {source:.3g} ms)"
    return ratio, f"{what}, at most {limit:g} times wanted"


def measure_delegation_drop(method: Subject, limit: float) -> Measured:
    share = method.now.share()
    accepted_share = method.before.share()
    drop = accepted_share - share
    sentence = f"{percent(share)} of nodes delegated, {percent(accepted_share)} in the baseline"
    sentence += f": {percent(drop)} less"
    newly = _newly_left(method, f"to {name_kernels(method.now.left)}")
    return drop, f"{sentence}, at most {percent(limit)} wanted{newly}"


def measure_sqnr_drop(method: Subject, limit: float) -> Measured:
    sqnrs = method.now.sqnr_db
    accepted = method.before.sqnr_db
    if sqnrs is None:
        return None, "its SQNR was not measured, and max_sqnr_drop limits its fall"
    if len(sqnrs) != len(accepted):
        return None, (
            f"has {len(sqnrs)} outputs, {len(accepted)} in the baseline; "
            f"`doit baseline {method.package}` accepts that"
        )
    names = output_names(method.facts.get("signature", {}), len(sqnrs))
    drops = []
    beyond = []
    for name, before, now in zip(names, accepted, sqnrs, strict=True):
        if before is None or now is None:
            continue
        drop = before - now
        drops.append(drop)
        if drop > limit + ROUNDING:
            beyond.append(f"{name} from {before:g} dB to {now:g} dB, {drop:.1f} dB less")
    sentence = f"SQNR fell since the baseline: {listed(beyond, _MOST)}; at most {limit:g} dB wanted"
    worst = max(drops, default=0.0)
    return (worst if math.isfinite(worst) else None), sentence  # a record holds no infinities
