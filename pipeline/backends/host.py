"""Requirements of a backend on the machine that builds, and facts about it for cache keys."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Requirement:
    """Something that a backend needs beside this package's plain install.

    `there` tells whether it is installed, without importing it; `what` names it and `remedy` says
    how to get it.
    """

    what: str
    remedy: str
    there: Callable[[], bool]


def extra(name: str, *modules: str) -> Requirement:
    """Return a requirement of modules that an extra of this package installs."""
    remedy = f"pip install 'pte-pipeline[{name}]'"
    return Requirement(", ".join(modules), remedy, lambda: all(map(importable, modules)))


def sdk(what: str, variable: str, where: str) -> Requirement:
    """Return a requirement of a vendor's SDK, whose folder an environment variable names."""
    remedy = f"get it from {where} and set {variable} to its folder"
    return Requirement(what, remedy, lambda: os.path.isdir(os.environ.get(variable) or ""))


def built(module: str, remedy: str) -> Requirement:
    """Return a requirement of a module inside executorch that its wheel leaves out."""
    package, *path, name = module.split(".")

    def there() -> bool:
        folders = [folder.joinpath(*path) for folder in package_folders(package)]
        files = (f"{name}.*", f"{name}/__init__.py")
        return any(True for folder in folders for each in files for _ in folder.glob(each))

    return Requirement(module, remedy, there)


def package_folders(package: str) -> list[Path]:
    """Return the folders of an installed package without importing it; [] where there is none."""
    spec = find_spec(package)
    return [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []


def importable(module: str) -> bool:
    """Return whether a module is installed. It and its parents are not imported, so only the first
    name of a dotted one counts."""
    return find_spec(module.partition(".")[0]) is not None


def on_a_mac(what: str) -> Callable[[], str]:
    """Return a function for `Execution.cannot_run` of what only Apple's systems run. ExecuTorch's
    wheels for macOS have these delegates, for this machine or none
    (tools/cmake/preset/pybind.cmake)."""
    return lambda: "" if sys.platform == "darwin" else f"{what} is run by Apple's systems only"


EXECUTORCH = ("executorch", "flatbuffers", "torch", "torchao")
TOSA = (*EXECUTORCH, "ml_dtypes", "numpy", "tosa-tools")


@dataclass(frozen=True)
class Host:
    """The machine that builds, as far as a backend depends on it.

    Attributes:
        requirements: what must be installed before anything can be lowered to it.
        distributions: those whose versions can change what it makes.
        facts: returns what else of this machine can change what it makes, for keys: versions of
            tools that are no distributions, variables of the environment. None where nothing does.
    """

    requirements: tuple[Requirement, ...] = ()
    distributions: tuple[str, ...] = EXECUTORCH
    facts: Callable[[], Mapping[str, str]] | None = None

    def missing(self) -> Iterator[Requirement]:
        """Yield the requirements that this machine lacks."""
        return (each for each in self.requirements if not each.there())
