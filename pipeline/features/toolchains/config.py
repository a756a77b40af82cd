"""The key `toolchain` of a package config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pipeline.config.fields import Name
from pipeline.features.toolchains.routing import HERE, read_toolchains
from pipeline.plan.planning import Planning
from pipeline.store.errors import Problem, did_you_mean

if TYPE_CHECKING:
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig


def add_fields() -> dict[str, tuple[Any, Any]]:
    """Return the field of packages."""
    text = (
        "The toolchain that builds the package, by its name in the setting `toolchains`; "
        f"`{HERE}` is the environment that runs doit."
    )
    field = Field(default=None, description=text, examples=["et15"])
    return {"toolchain": (Name | None, field)}


def summarize(config: PackageConfig, has_variables: bool) -> Mapping[str, Any] | None:
    """Return the toolchain that a config names, None where it names none."""
    name = getattr(config, "toolchain")  # noqa: B009 - mypy knows no such field
    if name is None:
        return None
    return {"name": name}


class ToolchainPlanning(Planning):
    """Refuses toolchains that the settings don't have."""

    def find_problems(
        self, package: str, config: PackageConfig, document: Document
    ) -> Iterator[Problem]:
        name = getattr(config, "toolchain")  # noqa: B009 - mypy knows no such field
        toolchains = read_toolchains(self.plan.workspace.root)
        if name != HERE and name not in toolchains:
            known = (
                did_you_mean(name, toolchains)
                if toolchains
                else "the setting names none"
            )
            yield document.problem("toolchain", f"no toolchain '{name}'", known)

    def problem_facts(self, package: str) -> Any:
        return sorted(read_toolchains(self.plan.workspace.root))
