"""The families of a workspace: the packages that share weights, what decides on what they share,
and the files that they have now.

What the packages of a family have in common is looked up once for all of them, so that a family of
hundreds is planned in the time of as many single packages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.plan.kinds.link import NO_OBJECTS, FamilyObjects
from pipeline.plan.kinds.validate import FamilyFiles
from pipeline.plan.models import once
from pipeline.store.digest import Digest, hash_json
from pipeline.store.errors import Problem, did_you_mean

if TYPE_CHECKING:
    from pipeline.config.compose import Document
    from pipeline.plan.plan import Plan

Files = Mapping[str, Digest]  # of a package, by name


class Families:
    """The families of a plan, by the names that its configs give them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known: dict[tuple[str, str], Any] = {}  # by method and family
        self._linked: dict[str, tuple[int, dict[str, Files], Digest]] = {}
        self._sizes: dict[Digest, int] = {}

    def forget(self) -> None:
        """Forget what depends on exports."""
        self._known.clear()

    @cached_property
    def _packages(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for package in self._plan.packages:
            if (name := self.name(package)) is not None:
                found.setdefault(name, []).append(package)
        return {name: tuple(packages) for name, packages in found.items()}

    def name(self, package: str) -> str | None:
        """Return the name of a package's family, None where it has none."""
        own = self._settings_of(package)
        return None if own is None else str(own["name"])

    def members(self, package: str) -> tuple[str, ...]:
        """Return all packages of a package's family, by name; none where it has no family."""
        name = self.name(package)
        return () if name is None else self._packages[name]

    def deciding(self, package: str) -> tuple[str, ...]:
        """Return the packages whose weights decide on what the family shares: its base, or all."""
        own, members = self._settings_of(package), self.members(package)
        if own is None or own["base"] is None:
            return members
        return (own["base"],) if own["base"] in members else ()

    def _settings_of(self, package: str) -> Mapping[str, Any] | None:
        summary = self._plan.configs.summary(package)
        return None if summary is None else summary.family

    @once
    def _settings(self, name: str) -> list[tuple[Mapping[str, Any], str]]:
        """Return the settings of a family that differ, each with its first package."""
        found: list[tuple[Mapping[str, Any], str]] = []
        for package in self._packages[name]:
            own = self._settings_of(package)
            assert own is not None
            if all(own != other for other, _ in found):
                found.append((own, package))
        return found

    def problems(self, package: str, document: Document) -> Iterator[Problem]:
        """Yield what is wrong between a package and its family."""
        if (name := self.name(package)) is None:
            return
        own = self._settings_of(package)
        assert own is not None
        for theirs, other in self._settings(name):
            if theirs != own:
                what = f"shares otherwise than the package '{other}' of this family"
                yield document.problem("family", what, "give all the same `base` and `share`")
                return
        if (base := own["base"]) is None or base == package:
            return
        if base not in self._plan.packages:
            known = did_you_mean(base, self.members(package))
            yield document.problem("family.base", f"there is no package '{base}'", known)
        elif self._plan.problems(base):
            what = f"the package '{base}', whose weights are shared, has mistakes"
            yield document.problem("family.base", what, "mend those first")
        elif base not in self.members(package):
            what = f"the package '{base}' is not of this family"
            yield document.problem("family.base", what, f"give it `family: {name}` too")

    def facts(self, package: str) -> Any:
        """Return what `problems` depends on beside the package's own config."""
        if (name := self.name(package)) is None:
            return None
        settings = [own for own, _ in self._settings(name)]
        base = settings[0]["base"]
        if len(settings) > 1 or base in (None, package):
            return settings
        there = base in self._plan.packages and not self._plan.problems(base)
        return [settings, there, base in self.members(package)]

    def objects(self, package: str) -> FamilyObjects | None:
        """Return what decides on the files that a package's family shares, without packages that
        have mistakes; nothing where it has no family, None while a model is not exported."""
        name = self.name(package)
        return NO_OBJECTS if name is None else self._objects(name)

    @once
    def _objects(self, name: str) -> FamilyObjects | None:
        plan = self._plan
        deciding = self.deciding(self._packages[name][0])
        found = {each: plan.compile_digests(each) for each in deciding}
        if any(own is None and plan.waits(each) for each, own in found.items()):
            return None
        compiles = {each: own for each, own in found.items() if own is not None}
        return FamilyObjects(hash_json(compiles), compiles)

    def changed(self, package: str) -> list[str]:
        """Return the other packages that decide on what is shared, and are compiled otherwise than
        when they were linked last."""
        name = self.name(package)
        return [each for each in self._changed(name) if each != package] if name else []

    @once
    def _changed(self, name: str) -> list[str]:
        found, state = self._objects(name), self._plan.workspace.state
        compiles = found.compiles if found else {}
        return [each for each, own in compiles.items() if state(each).get("compile") != own]

    # What is linked

    def hash_files(
        self, package: str, files: Files, others: Mapping[str, Files] | None = None
    ) -> Digest | None:
        """Hash which files the packages of a family have: this one `files`, of the others those
        that are linked, or `others`. None where the package has no family."""
        if (name := self.name(package)) is None:
            return None
        linked, digest = self._find_linked(name)
        if linked[package] == files and not others:
            return digest
        given = {each: own for each, own in (others or {}).items() if each in linked}
        return hash_json({**linked, **given, package: files})

    def describe_files(self, package: str, files: Files) -> FamilyFiles:
        """Return digest and size in bytes of the files of each package of a family, by name."""
        if (name := self.name(package)) is None:
            return {}
        family = {**self._find_linked(name)[0], package: files}
        for member, own in family.items():
            for file, content in own.items():
                if content not in self._sizes:
                    with suppress(OSError):  # a file that is gone is made again first
                        path = self._plan.workspace.package(member) / file
                        self._sizes[content] = path.stat().st_size
        sizes = self._sizes
        return {
            member: {name: (each, sizes[each]) for name, each in own.items() if each in sizes}
            for member, own in family.items()
        }

    def _find_linked(self, name: str) -> tuple[dict[str, Files], Digest]:
        """Return the files of each package that a device loads, as they are linked now."""
        now = self._plan.workspace.writes
        if name not in self._linked or self._linked[name][0] != now:
            linked: dict[str, Files] = {e: self._plan.linked(e) for e in self._packages[name]}
            self._linked[name] = now, linked, hash_json(linked)
        return self._linked[name][1:]
