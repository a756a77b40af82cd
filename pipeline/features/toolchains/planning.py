"""The toolchains of a plan: the one that builds a package, and those whose runtimes load it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.features.toolchains.routing import (
    HERE,
    present_toolchain,
    read_toolchains,
)
from pipeline.plan.planning import Files, Json, Planning
from pipeline.store.errors import Problem, did_you_mean
from pipeline.store.json_diff import Difference

if TYPE_CHECKING:  # a no-op run parses no config and doesn't import pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig

RUNTIMES = "runtimes"  # a field of the key of a validate action


def summarize(config: PackageConfig, has_variables: bool) -> Mapping[str, Any]:
    """Return the toolchain that a config names, or None."""
    return {"name": getattr(config, "toolchain")}  # noqa: B009 - mypy knows no such field


class ToolchainPlanning(Planning):
    """Refuses unknown toolchains, and holds packages to the runtimes of the known ones."""

    @cached_property
    def _toolchains(self) -> Mapping[str, tuple[str, ...]]:
        return read_toolchains(self.plan.workspace.root)

    @cached_property
    def _runtimes(self) -> dict[str, list[str]]:
        """The setting and the ExecuTorch distributions of each other toolchain, by name."""
        runtimes = {}
        for name, texts in self._toolchains.items():
            if name != present_toolchain():
                runtimes[name] = find_installed(self.plan.workspace.root, texts)
        return runtimes

    def find_problems(
        self, package: str, config: PackageConfig, document: Document
    ) -> Iterator[Problem]:
        name = getattr(config, "toolchain")  # noqa: B009 - mypy knows no such field
        if name not in (None, HERE, *self._toolchains):
            known = "the setting names none"
            if self._toolchains:
                known = did_you_mean(name, self._toolchains)
            yield document.problem("toolchain", f"no toolchain '{name}'", known)

    def problem_facts(self, package: str) -> Any:
        return sorted(self._toolchains)

    def validate_facts(self, package: str, files: Files) -> Any:
        return self._runtimes

    def held_to(self, package: str, files: Files, config: PackageConfig) -> Json:
        return {RUNTIMES: self._runtimes}


def find_installed(root: Path, texts: tuple[str, ...]) -> list[str]:
    """Return a toolchain's setting, and the ExecuTorch distributions in its folder.

    If these change, the toolchain's runtime is asked again.
    """
    installed = list(texts)
    for text in texts:
        folder = root.joinpath(Path(text).expanduser())
        paths = folder.glob("lib/python*/site-packages/executorch*.dist-info")
        installed += sorted(path.name for path in paths)
    return installed


def describe_key(difference: Difference) -> str | None:
    """Describe a difference in the runtimes that load packages; return None for any other."""
    match difference.path:
        case ("held_to", "runtimes", name, *_):
            return f"the runtime of toolchain {name} {difference.change()}"
        case ("held_to", "runtimes"):
            return "the runtimes in the setting toolchains changed"
    return None
