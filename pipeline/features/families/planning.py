"""The families of a workspace.

This module knows which packages share weights, what determines these weights, and the current files
of each family.

Facts common to the packages of a family are looked up once for all of them, so that planning a
family of hundreds takes no longer than planning as many single packages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.plan.models import once
from pipeline.plan.planning import Files, Planning
from pipeline.store.digest import Digest, hash_json
from pipeline.store.errors import Problem, did_you_mean
from pipeline.store.json_diff import Difference

if TYPE_CHECKING:  # a no-op run parses no config and needs no pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig
    from pipeline.plan.plan import Plan

Settings = Mapping[str, Any]
Compiles = Mapping[str, Mapping[str, Digest]]  # actions by package and unit


class FamilyPlanning(Planning):
    """The families in a plan, by the names in its configs."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._known: dict[tuple[str, str], Any] = {}  # by method and family
        self._variants: dict[str, list[tuple[Settings, str]]] = {}
        self._linked: dict[str, tuple[Any, dict[str, Files], Digest]] = {}
        self._sizes: dict[Digest, int] = {}

    def forget(self) -> None:
        self._known.clear()

    # Membership

    @cached_property
    def packages(self) -> dict[str, tuple[str, ...]]:
        """The packages of each family, by its name."""
        families: dict[str, list[str]] = {}
        for package in self.plan.packages:
            settings = self.settings(package)
            if settings is not None:
                families.setdefault(settings["name"], []).append(package)
        return {name: tuple(packages) for name, packages in families.items()}

    def settings(self, package: str) -> Settings | None:
        """Return the family settings in a package's config, or None if it has no family."""
        summary = self.plan.configs.summary(package)
        if summary is None:
            return None
        settings: Settings | None = summary.features.get("families")
        return settings

    def name(self, package: str) -> str:
        """Return the name of the family of a package that has one."""
        settings = self.settings(package)
        assert settings is not None
        return str(settings["name"])

    def members(self, package: str) -> tuple[str, ...]:
        """Return all packages of a package's family, by name."""
        return self.packages[self.name(package)]

    def deciding(self, package: str) -> tuple[str, ...]:
        """Return the packages whose weights determine what the family shares: its base, or all."""
        settings = self.settings(package)
        members = self.members(package)
        if settings is None or settings["base"] is None:
            return members
        if settings["base"] in members:
            return (settings["base"],)
        return ()

    # Problems

    def find_problems(
        self, package: str, config: PackageConfig, document: Document
    ) -> Iterator[Problem]:
        settings = self.settings(package)
        assert settings is not None
        for variant, first_package in self._find_variants(settings["name"]):
            if variant != settings:
                mistake = (
                    f"has other sharing options than '{first_package}' of this family"
                )
                yield document.problem(
                    "family",
                    mistake,
                    "give all packages of the family the same `base` and `share`",
                )
                return
        base = settings["base"]
        if base is None or base == package:
            return
        if base not in self.plan.packages:
            similar = did_you_mean(base, self.members(package))
            yield document.problem(
                "family.base", f"there is no package '{base}'", similar
            )
        elif self.plan.problems(base):
            mistake = f"the package '{base}', whose weights are shared, has mistakes"
            yield document.problem("family.base", mistake, "fix those first")
        elif base not in self.members(package):
            mistake = f"the package '{base}' is not in this family"
            remedy = f"give it `family: {settings['name']}` too"
            yield document.problem("family.base", mistake, remedy)

    def problem_facts(self, package: str) -> Any:
        settings = [variant for variant, _ in self._find_variants(self.name(package))]
        base = settings[0]["base"]
        if len(settings) > 1 or base in (None, package):
            return settings
        is_sound = base in self.plan.packages and not self.plan.problems(base)
        return [settings, is_sound, base in self.members(package)]

    def _find_variants(self, family: str) -> list[tuple[Settings, str]]:
        """Return the distinct settings in a family's configs, each with its first package."""
        if family not in self._variants:
            variants: list[tuple[Settings, str]] = []
            for package in self.packages[family]:
                settings = self.settings(package)
                assert settings is not None
                if all(settings != variant for variant, _ in variants):
                    variants.append((settings, package))
            self._variants[family] = variants
        return self._variants[family]

    # Dependencies of a link

    def add_to_link(self, package: str) -> dict[str, Any] | None:
        """Return the family's part of a link's key, or None while it is unknown.

        It is unknown until its packages' compile actions are known. Invalid packages don't count.
        """
        compiles = self._compiles(self.name(package))
        if compiles is None:
            return None
        settings = self.settings(package) or {}
        return {"family": {**settings, "objects": compiles[0]}}

    @once
    def _compiles(self, family: str) -> tuple[Digest, Compiles] | None:
        """Return the digest of the compile actions that determine the weights, and the actions.

        Returns None if they aren't known yet.
        """
        compiles: dict[str, Mapping[str, Digest]] = {}
        for package in self.deciding(self.packages[family][0]):
            digests = self.plan.compile_digests(package)
            if digests is not None:
                compiles[package] = digests
            elif self.plan.waits(package):
                return None
        return hash_json(compiles), compiles

    def explain_link(self, package: str) -> Iterator[str]:
        for member in self._changed(self.name(package)):
            if member != package:
                yield f"{member}, of its family, changed"

    @once
    def _changed(self, family: str) -> list[str]:
        """Return the packages that changed since their last link.

        These are packages that determine the shared weights and whose compile actions differ from
        those of their last link.
        """
        compiles = self._compiles(family)
        if compiles is None:
            return []
        changed = []
        for package, digests in compiles[1].items():
            if self.plan.workspace.state(package).get("compile") != digests:
                changed.append(package)
        return changed

    # Dependencies of a validation: the files of all packages

    def validate_facts(self, package: str, files: Files) -> Digest:
        """Hash the files of a family: `files` of this package, linked files of the others."""
        present, digest = self._find_linked(self.name(package))
        if present[package] == files:
            return digest
        return hash_json({**present, package: files})

    def held_to(
        self, package: str, files: Files, config: PackageConfig
    ) -> Mapping[str, Any]:
        return {"family": self.validate_facts(package, files)}

    def add_to_record(self, package: str, files: Files) -> Mapping[str, Any]:
        settings = self.settings(package) or {}
        family = {
            "name": settings["name"],
            "base": settings["base"],
            "packages": self._describe_files(package, files),
        }
        return {"family": family}

    def _describe_files(
        self, package: str, files: Files
    ) -> dict[str, dict[str, tuple[str, int]]]:
        """Return digest and size in bytes of the files of each package of a family, by name."""
        present = {**self._find_linked(self.name(package))[0], package: files}
        described: dict[str, dict[str, tuple[str, int]]] = {}
        for member, member_files in present.items():
            described[member] = {}
            for file, content in member_files.items():
                size = self._find_size(member, file, content)
                if size is not None:
                    described[member][file] = (content, size)
        return described

    def _find_size(self, package: str, file: str, content: Digest) -> int | None:
        """Return the size of a linked file in bytes, or None if it is gone.

        A file that is gone has to be made again.
        """
        if content not in self._sizes:
            with suppress(OSError):
                path = self.plan.workspace.package(package) / file
                self._sizes[content] = path.stat().st_size
        return self._sizes.get(content)

    def _find_linked(self, family: str) -> tuple[dict[str, Files], Digest]:
        """Return each package's linked files that a device loads, and a digest of all."""
        known_for = self.plan.workspace.writes, self.plan.foreseen
        if family not in self._linked or self._linked[family][0] != known_for:
            linked: dict[str, Files] = {}
            for package in self.packages[family]:
                linked[package] = self.plan.linked(package)
            self._linked[family] = known_for, linked, hash_json(linked)
        return self._linked[family][1:]


def describe_difference(difference: Difference) -> str | None:
    """Describe a difference of two keys in a family's shared weights; None for any other."""
    match difference.path:
        case ("family", "objects"):
            return "the weights that its family shares are chosen from other weights"
        case ("held_to", "family"):
            return "files of its family changed"
    return None
