"""Counts the bytes that packages of one family would share, from the objects that they consist of.

Trials are linked without their family, so a trial's size is that of a package by itself. Weights
that several chosen packages hold are in files that an app ships once, and count once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pipeline.compile.sharing import iter_named
from pipeline.config.patterns import fits_weight
from pipeline.plan.plan import Plan
from pipeline.report.records import read_fitting
from pipeline.store.digest import Digest
from pipeline.store.files import MANIFEST

Json = Mapping[str, Any]
Blobs = Mapping[Digest, int]  # bytes by digest
_LEAST = 64  # bytes; smaller constants are not shared
_FAMILIES = "families"  # the feature that reads `family`


class FamilyWeights:
    """The weights of the packages of a family.

    Attributes:
        packages: the packages that are tuned.
        fixed: the packages without alternatives, which count as they were built.
    """

    def __init__(
        self,
        packages: Sequence[str],
        fixed: Sequence[str],
        blobs: Mapping[str, Blobs],
        base: Blobs | None = None,
    ) -> None:
        """Take the weights of each trial and each fixed package, by name.

        If the family has a base, `base` holds its weights, and only these are shared.
        """
        self.packages = packages
        self.fixed = fixed
        holders = Counter(digest for sizes in blobs.values() for digest in sizes)
        self._blobs: dict[str, Blobs] = {}
        for name, sizes in blobs.items():
            self._blobs[name] = {
                digest: size
                for digest, size in sizes.items()
                if holders[digest] > 1 and (base is None or digest in base)
            }

    def count_repeated(self, trials: Sequence[str]) -> int:
        """Return the bytes that the named trials and the fixed packages hold more than once.

        The sum of their sizes is too large by these bytes.
        """
        seen: set[Digest] = set()
        repeated = 0
        for name in (*self.fixed, *trials):
            for digest, size in self._blobs[name].items():
                if digest in seen:
                    repeated += size
                seen.add(digest)
        return repeated


def read_families(
    plan: Plan, searches: Sequence[Any], fixed: Sequence[str]
) -> list[FamilyWeights]:
    """Return the families from which several packages are chosen together.

    Args:
        searches: `search.Search` objects, whose trials are lowered.
        fixed: packages without alternatives, which are built.
    """
    tuned = {search.space.package: search for search in searches}
    members: dict[str, list[str]] = {}
    settings_by_family: dict[str, Json] = {}
    for package in (*tuned, *fixed):
        settings = _find_settings(plan, package)
        if settings is not None:
            members.setdefault(settings["name"], []).append(package)
            settings_by_family[settings["name"]] = settings
    families = []
    for family, packages in members.items():
        if len(packages) < 2:
            continue
        settings = settings_by_family[family]
        blobs: dict[str, Blobs] = {}
        for package in packages:
            if package in tuned:
                blobs |= _read_trials(tuned[package], settings)
            else:
                blobs[package] = read_blobs(plan, package, settings)
        base = None
        if settings["base"] is not None:
            base = read_blobs(plan, settings["base"], settings)
        names = [package for package in packages if package in tuned]
        others = [package for package in packages if package not in tuned]
        families.append(FamilyWeights(names, others, blobs, base))
    return families


def _find_settings(plan: Plan, package: str) -> Json | None:
    summary = plan.configs.summary(package)
    if summary is None:
        return None
    settings: Json | None = summary.features.get(_FAMILIES)
    return settings


def _read_trials(search: Any, settings: Json) -> dict[str, Blobs]:
    plan = search.folder.make_plan()
    blobs: dict[str, Blobs] = {}
    for trial in search.trials:
        if trial.name and trial.figures:
            blobs[trial.name] = read_blobs(plan, trial.name, settings)
    return blobs


def read_blobs(plan: Plan, package: str, settings: Json) -> dict[Digest, int]:
    """Return the weights in the store that a package's family may share."""
    patterns = [pattern for _, patterns in settings["share"] for pattern in patterns]
    blobs: dict[Digest, int] = {}
    for digest in (plan.compile_digests(package) or {}).values():
        entry = plan.workspace.store.get(digest)
        if entry is None:
            continue
        names = _find_names(entry.result)
        for blob in _iter_blobs(entry.result["object"]):
            if blob["size"] >= _LEAST and _fits(
                names.get(blob["digest"], ()), patterns
            ):
                blobs[blob["digest"]] = blob["size"]
    return blobs


def _iter_blobs(record: Json) -> Iterator[Json]:
    yield from record["constants"]
    yield from record["external_constants"]
    for entry in iter_named(record):
        yield entry["blob"]


def _find_names(result: Json) -> dict[Digest, set[str]]:
    """Return the qualified names of weights, by the digest of each form in which one is stored."""
    names: dict[Digest, set[str]] = {}
    for method in result["methods"].values():
        for content, tensor in method["constants"]["tensors"].items():
            for form in (content, *tensor["forms"]):
                names.setdefault(form, set()).update(tensor["names"])
    return names


def _fits(names: Collection[str], patterns: Sequence[str]) -> bool:
    if "*" in patterns:
        return True
    return any(fits_weight(name, pattern) for name in names for pattern in patterns)


def measure_apart(plan: Plan, package: str) -> float | None:
    """Return the size that a package of a family would have by itself, or None without a family.

    It is the size of the package's own files and, from files that other packages have too, of the
    weights that it holds.
    """
    settings = _find_settings(plan, package)
    if settings is None:
        return None
    held: set[Digest] = set()  # by other packages
    other_files: set[Digest] = set()
    for member in plan.packages:
        member_settings = _find_settings(plan, member)
        if member == package or member_settings is None:
            continue
        if member_settings["name"] == settings["name"]:
            held.update(read_blobs(plan, member, settings))
            other_files.update(_read_files(plan, member, ".ptd"))
    if settings["base"] is not None:
        held = set(read_blobs(plan, settings["base"], settings))
    files = _read_files(plan, package)
    size = sum(files[content] for content in files if content not in other_files)
    if not other_files.isdisjoint(files):
        blobs = read_blobs(plan, package, settings)
        size += sum(blobs[content] for content in blobs if content in held)
    return float(size)


def _read_files(plan: Plan, package: str, suffix: str = "") -> dict[Digest, int]:
    """Return the bytes of a package's files with a suffix, by digest."""
    manifest = read_fitting(plan.workspace.package(package) / MANIFEST) or {"files": {}}
    files = {}
    for name, file in manifest["files"].items():
        if name.endswith(suffix):
            files[file["digest"]] = file["size"]
    return files
