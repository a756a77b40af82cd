"""The families of a workspace as its configs describe them: which packages share weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pipeline.plan.config_cache import ConfigCache

Settings = Mapping[str, Any]


class FamilySettings:
    """The families that configs name, and what each package says of its own."""

    def __init__(self, configs: ConfigCache) -> None:
        self._configs = configs
        self._settings: dict[str, list[tuple[Settings, str]]] = {}

    @cached_property
    def packages(self) -> dict[str, tuple[str, ...]]:
        """The packages of each family, by its name."""
        families: dict[str, list[str]] = {}
        for package in self._configs.packages:
            name = self.name(package)
            if name is not None:
                families.setdefault(name, []).append(package)
        return {name: tuple(packages) for name, packages in families.items()}

    def of(self, package: str) -> Settings | None:
        """Return what a package's config says of its family, None where it has none."""
        summary = self._configs.summary(package)
        if summary is None:
            return None
        return summary.family

    def name(self, package: str) -> str | None:
        """Return the name of a package's family, None where it has none."""
        settings = self.of(package)
        if settings is None:
            return None
        return str(settings["name"])

    def members(self, package: str) -> tuple[str, ...]:
        """Return all packages of a package's family, by name; none where it has no family."""
        name = self.name(package)
        if name is None:
            return ()
        return self.packages[name]

    def deciding(self, package: str) -> tuple[str, ...]:
        """Return the packages whose weights decide on what the family shares: its base, or all."""
        settings = self.of(package)
        members = self.members(package)
        if settings is None or settings["base"] is None:
            return members
        if settings["base"] in members:
            return (settings["base"],)
        return ()

    def variants(self, name: str) -> list[tuple[Settings, str]]:
        """Return the settings of a family that differ, each with its first package."""
        if name not in self._settings:
            variants: list[tuple[Settings, str]] = []
            for package in self.packages[name]:
                settings = self.of(package)
                assert settings is not None
                if all(settings != variant for variant, _ in variants):
                    variants.append((settings, package))
            self._settings[name] = variants
        return self._settings[name]
