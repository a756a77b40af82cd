"""What a backend requires of the machine that builds, and facts about it for cache keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pipeline.moments import call_all


@dataclass(frozen=True)
class Requirement:
    """Something that a backend needs in addition to this package's base install.

    `there` returns whether it is installed, without importing it; `what` names it, and `remedy`
    says how to get it.
    """

    what: str
    remedy: str
    there: Callable[[], bool]


def extra(name: str, *modules: str) -> Requirement:
    """Return a requirement for modules that an extra of this package installs."""
    remedy = f"pip install 'pte-pipeline[{name}]'"
    return Requirement(
        ", ".join(modules), remedy, lambda: all(map(importable, modules))
    )


def sdk(name: str, variable: str, where: str) -> Requirement:
    """Return a requirement for a vendor's SDK, whose folder an environment variable names."""
    remedy = f"get the SDK from {where} and set {variable} to its folder"
    return Requirement(
        name, remedy, lambda: os.path.isdir(os.environ.get(variable) or "")
    )


def built(module: str, remedy: str) -> Requirement:
    """Return a requirement for a module inside executorch that its wheel leaves out."""
    package, *path, name = module.split(".")

    def is_installed() -> bool:
        # Not by `find_spec`, which would import the packages around a module.
        for folder in package_folders(package):
            for pattern in (f"{name}.*", f"{name}/__init__.py"):
                if any(folder.joinpath(*path).glob(pattern)):
                    return True
        return False

    return Requirement(module, remedy, is_installed)


def package_folders(package: str) -> list[Path]:
    """Return the folders of an installed package without importing it; [] if it isn't installed."""
    spec = find_spec(package)
    if spec is None:
        return []
    return [Path(folder) for folder in spec.submodule_search_locations or ()]


def importable(module: str) -> bool:
    """Return whether a module is installed.

    Nothing is imported, so only the first part of a dotted name counts.
    """
    return find_spec(module.partition(".")[0]) is not None


EXECUTORCH = ("executorch", "flatbuffers", "torch", "torchao")
TOSA = (*EXECUTORCH, "ml_dtypes", "numpy", "tosa-tools")


@dataclass(frozen=True)
class Host:
    """A backend's dependencies on the machine that builds.

    Attributes:
        requirements: what must be installed before anything can be lowered to it.
        distributions: those whose versions can change its output.
        facts: returns further facts about this machine that can change its output, for keys:
            versions of tools that are not distributions, and environment variables. None if there
            are none.
    """

    requirements: tuple[Requirement, ...] = ()
    distributions: tuple[str, ...] = EXECUTORCH
    facts: Callable[[], Mapping[str, str]] | None = None

    def missing(self) -> Iterator[Requirement]:
        """Yield the requirements that this machine lacks."""
        return (
            requirement for requirement in self.requirements if not requirement.there()
        )


def explain_missing_delegate(backend_id: str, label: str) -> str:
    """Return a message if the runtime here lacks a delegate, else ""; `label` is its short name."""
    return next(
        call_all("explain_missing_delegate", backend_id, label),
        'this installation has no feature "delegate_libraries"',
    )


def find_delegate_facts(backend_id: str) -> dict[str, str]:
    """Return facts about the library that adds a delegate to the runtime here.

    They are in the form of `backends.entry.Execution.facts`.
    """
    return next(call_all("find_delegate_facts", backend_id), {})
