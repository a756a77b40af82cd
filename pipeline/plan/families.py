"""The families of a workspace: what decides on the weights that packages share, and the files that
they have now.

What the packages of a family have in common is looked up once for all of them, so that a family of
hundreds is planned in the time of as many single packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pipeline.plan.family_settings import FamilySettings
from pipeline.plan.kinds.link import NO_OBJECTS, FamilyObjects
from pipeline.plan.kinds.validate import FamilyFiles
from pipeline.plan.models import once
from pipeline.plan.units import Units
from pipeline.store.digest import Digest, hash_json

Files = Mapping[str, Digest]  # of a package, by name


class Families(FamilySettings):
    """The families of a plan, by the names that its configs give them."""

    def __init__(self, units: Units) -> None:
        super().__init__(units.configs)
        self._units = units
        self._known: dict[tuple[str, str], Any] = {}  # by method and family
        self._linked: dict[str, tuple[Any, dict[str, Files], Digest]] = {}
        self._sizes: dict[Digest, int] = {}

    def forget(self) -> None:
        """Forget what depends on exports."""
        self._known.clear()

    def objects(self, package: str) -> FamilyObjects | None:
        """Return what decides on the files that a package's family shares, without packages that
        have mistakes; nothing where it has no family, None while a model is not exported."""
        name = self.name(package)
        if name is None:
            return NO_OBJECTS
        return self._objects(name)

    @once
    def _objects(self, name: str) -> FamilyObjects | None:
        compiles: dict[str, Mapping[str, Digest]] = {}
        for package in self.deciding(self.packages[name][0]):
            digests = self._units.compile_digests(package)
            if digests is not None:
                compiles[package] = digests
            elif self._units.waits(package):
                return None
        return FamilyObjects(hash_json(compiles), compiles)

    def changed(self, package: str) -> list[str]:
        """Return the other packages that decide on what is shared, and are compiled otherwise than
        when they were linked last."""
        name = self.name(package)
        if not name:
            return []
        return [changed for changed in self._changed(name) if changed != package]

    @once
    def _changed(self, name: str) -> list[str]:
        objects = self._objects(name)
        state = self._units.workspace.state
        if objects:
            compiles = objects.compiles
        else:
            compiles = {}
        return [
            package
            for package, digests in compiles.items()
            if state(package).get("compile") != digests
        ]

    # What is linked

    def hash_files(self, package: str, files: Files) -> Digest | None:
        """Hash which files the packages of a family have: this one `files`, of the others those
        that are linked. None where the package has no family."""
        name = self.name(package)
        if name is None:
            return None
        linked, digest = self._find_linked(name)
        if linked[package] == files:
            return digest
        return hash_json({**linked, package: files})

    def describe_files(self, package: str, files: Files) -> FamilyFiles:
        """Return digest and size in bytes of the files of each package of a family, by name."""
        name = self.name(package)
        if name is None:
            return {}
        family = {**self._find_linked(name)[0], package: files}
        described: dict[str, dict[str, tuple[str, int]]] = {}
        for member, member_files in family.items():
            described[member] = {}
            for file, content in member_files.items():
                size = self._find_size(member, file, content)
                if size is not None:
                    described[member][file] = (content, size)
        return described

    def _find_size(self, package: str, file: str, content: Digest) -> int | None:
        """Return the size of a linked file in bytes; None for one that is gone, and is made again
        first."""
        if content not in self._sizes:
            with suppress(OSError):
                path = self._units.workspace.package(package) / file
                self._sizes[content] = path.stat().st_size
        return self._sizes.get(content)

    def _find_linked(self, name: str) -> tuple[dict[str, Files], Digest]:
        """Return the files of each package that a device loads, as they are linked now."""
        known_for = self._units.workspace.writes, self._units.foreseen
        if name not in self._linked or self._linked[name][0] != known_for:
            linked: dict[str, Files] = {}
            for package in self.packages[name]:
                linked[package] = self._units.linked(package)
            self._linked[name] = known_for, linked, hash_json(linked)
        return self._linked[name][1:]
