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
    size, before = package.now.size, package.before.size
    growth = size / before - 1
    what = f"the package grew by {percent(growth)} since the baseline, from {before:,}"
    return growth, f"{what} to {size:,} bytes, at most {percent(limit)} wanted; {_growth(package)}"


def measure_family_size(package: Subject, limit: int) -> Measured:
    if not package.family:
        return None, f"it has no family, whose size max_family_size limits; {_NAME_FAMILY}"
    sizes = {content: n for own in package.family.values() for content, n in own.values()}
    size = sum(sizes.values())
    what = f"the {plural(len(package.family), 'package')} of the family have {size} bytes"
    return size, f"{what}, at most {limit} wanted; {_describe_own_files(package)}"


def measure_added_size(package: Subject, limit: int) -> Measured:
    if not package.family:
        return None, f"it has no family, to which max_added_size is added; {_NAME_FAMILY}"
    own = _own_files(package.family, package.package)
    size = sum(own.values())
    named = ", ".join(f"{name} {n}" for name, n in own.items())
    what = f"the package adds {size} bytes to its family, at most {limit} wanted"
    return size, f"{what}; its own are {named}"


def _own_files(family: Json, package: str) -> dict[str, int]:
    """Return the sizes in bytes of the files that no other package of the family has."""
    others = {
        content for p, files in family.items() if p != package for content, _ in files.values()
    }
    return {name: n for name, (content, n) in family[package].items() if content not in others}


def _describe_own_files(package: Subject) -> str:
    own = {member: sum(_own_files(package.family, member).values()) for member in package.family}
    largest = sorted(own.items(), key=lambda pair: (-pair[1], pair[0]))
    return "their own: " + listed((f"{member} {size}" for member, size in largest), _MOST)


def _growth(package: Subject) -> str:
    """Describe which kinds of segments, methods and tensors grew since the baseline."""
    segments, methods, tensors = zip(_sizes(package.before), _sizes(package.now), strict=True)
    # A baseline names the largest tensors only, so a smaller one may not be new.
    least = min(tensors[0].values(), default=math.inf)
    new = [change for change in _increases(*tensors) if change[1] is not None or change[2] > least]
    grown = {"grew": _increases(*segments), "methods": _increases(*methods), "tensors": new}
    sentences = {
        what: [
            f"{name} is new, {size:,} bytes"
            if before is None
            else f"{name} by {size - before:,} bytes to {size:,}"
            for name, before, size in changes
        ]
        for what, changes in grown.items()
    }
    return "; ".join(f"{what}: {listed(each, _MOST)}" for what, each in sentences.items() if each)


def _sizes(figures: Figures) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Return bytes of segments, of methods as far as they are known, and of tensors, by name."""
    methods = {
        name: (method.constants or 0) + (method.delegated or 0)
        for name, method in figures.methods.items()
        if method.constants is not None or method.delegated is not None
    }
    return figures.segments, methods, {name: t.size for name, t in figures.tensors.items()}


def _increases(before: Mapping[str, int], after: Mapping[str, int]) -> list[Increase]:
    """Return what is more than before, the greatest increase first."""
    found = [(name, before.get(name), n) for name, n in after.items() if n > before.get(name, 0)]
    return sorted(found, key=lambda each: ((each[1] or 0) - each[2], each[0]))


def measure_delegated(noun: str, method: Subject, limit: float) -> Measured:
    found = method.now.share(noun)
    why = partial(describe_left, method.facts["delegation"])
    left = ", ".join(f"{name} x{calls}{why(name)}" for name, calls in method.now.left.items())
    what = f"{percent(found)} of {noun} delegated, at least {percent(limit)} wanted"
    newly = _newly_left(method, "since the baseline", reasons=False)
    return found, f"{what}; left to {name_kernels(method.now.left)}: {left or 'none'}{newly}"


def _newly_left(method: Subject, words: str, reasons: bool = True) -> str:
    """Describe the calls left to kernels now that were not in the baseline, with `reasons`."""
    if method.before is None:
        return ""
    delegation = method.facts["delegation"] if reasons else {}
    calls = [
        f"{name} x{calls}{f' (was x{before})' if before else ''}{describe_left(delegation, name)}"
        for name, before, calls in _increases(method.before.left, method.now.left)
    ]
    return f"; newly left {words}: {listed(calls, _MOST)}" if calls else ""


def measure_portable(method: Subject, allowed: Iterable[str]) -> Measured:
    patterns = [pattern.removesuffix(".default") for pattern in allowed]
    left = {
        name: calls
        for name, calls in method.now.left.items()
        if not any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    why = partial(describe_left, method.facts["delegation"])
    calls = ", ".join(f"{name} x{count}{why(name)}" for name, count in left.items())
    also = f"only {', '.join(patterns)} may be" if patterns else "none may be"
    newly = _newly_left(method, "since the baseline", reasons=False)
    kernels = name_kernels(method.now.left)
    return sum(left.values()), f"left to {kernels}, where {also}: {calls}{newly}"


def measure_memory(method: Subject, limit: int) -> Measured:
    planned = method.now.planned_memory
    if planned is None:
        what = "its planned memory is not known, since there is no contents.json"
        return None, f"{what}; `doit -a lower:{method.package}` makes it"
    what = f"plans {planned:,} bytes of memory, at most {limit:,} wanted"
    arenas = [f"arena {a['arena']}: {a['size']:,}" for a in method.arenas if a["size"]]
    what += "; " + ", ".join(arenas) if arenas[1:] else ""
    before = method.before.planned_memory if method.before else None
    return planned, what + ("" if before is None else f"; {before:,} in the baseline")


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
    here, there = method.now.share(), method.before.share()
    drop = there - here
    what = f"{percent(here)} of nodes delegated, {percent(there)} in the baseline"
    what += f": {percent(drop)} less"
    newly = _newly_left(method, f"to {name_kernels(method.now.left)}")
    return drop, f"{what}, at most {percent(limit)} wanted{newly}"


def measure_sqnr_drop(method: Subject, limit: float) -> Measured:
    here, there = method.now.sqnr_db, method.before.sqnr_db
    if here is None:
        return None, "its SQNR was not measured, and max_sqnr_drop limits its fall"
    command = f"`doit baseline {method.package}`"
    if len(here) != len(there):
        what = f"has {len(here)} outputs, {len(there)} in the baseline; {command} accepts that"
        return None, what
    names = output_names(method.facts.get("signature", {}), len(here))
    drops = [
        (before - now, f"{name} from {before:g} dB to {now:g} dB, {before - now:.1f} dB less")
        for name, before, now in zip(names, there, here, strict=True)
        if before is not None and now is not None
    ]
    wrong = listed((what for drop, what in drops if drop > limit + ROUNDING), _MOST)
    what = f"SQNR fell since the baseline: {wrong}; at most {limit:g} dB wanted"
    worst = max((drop for drop, _ in drops), default=0.0)
    return (worst if math.isfinite(worst) else None), what  # a record holds no infinities
