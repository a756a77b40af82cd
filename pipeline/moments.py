"""The moments at which a feature takes part in a build: the contract between core and features.

The core builds, stores and validates packages. A feature is a folder in `pipeline/features/` that
the core can do without: its `__init__.py` declares `FEATURE = Feature(...)`, whose fields are the
moments listed below, each a function named as `"module:function"`. The function is imported when
its moment comes, so a feature that is installed and not used costs the import of its declaration.
The core imports no feature; deleting the folder leaves a build that works without it.

Another distribution brings a feature by an entry point of the group `pte_pipeline.features`, whose
name is the feature's and whose value is its declaration (`my_distribution.feature:FEATURE`).

A plain frozen record rather than pluggy: importing pluggy and registering 20 plugins takes 35 ms of
a no-op run, against 9 ms here, and its hooks are found by a function's name, which import-linter,
mypy and a reader's search do not follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

GROUP = "pte_pipeline.features"
FOLDER = Path(__file__).with_name("features")


@dataclass(frozen=True)
class Command:
    """A command of the command line.

    Attributes:
        summary: one line.
        words: what may follow its name.
        options: the help of its flags (`--name`), which may stand anywhere after its name.
        more: further lines of its help.
        examples: command lines with what they do.
        run: of a feature's verb, the function that takes the plan and the words, and yields lines
            to print.
        builds: whether it builds packages, for which the toolchain must be a known one.
        anywhere: whether it needs no workspace: its function takes the words and a folder, prints,
            and returns the exit status.
    """

    name: str
    summary: str
    words: str = ""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    more: str = ""
    examples: tuple[tuple[str, str], ...] = ()
    run: str = ""
    builds: bool = False
    anywhere: bool = False


@dataclass(frozen=True)
class Feature:
    """What a feature adds to a build; every field but the first two is a moment.

    Attributes:
        name: that of its folder.
        summary: what a build can't do without it, in one line.
        verbs: the commands that it brings.
    """

    name: str
    summary: str
    verbs: tuple[Command, ...] = ()


@cache
def find_features() -> tuple[Feature, ...]:
    """Return the features of this installation, sorted by name: those of the folder first."""
    folders = sorted(path.parent.name for path in FOLDER.glob("*/__init__.py"))
    features = [import_module(f"pipeline.features.{name}").FEATURE for name in folders]
    points = sorted(installed_entry_points().select(group=GROUP), key=lambda point: point.name)
    features += [point.load() for point in points]
    return tuple(features)


@cache
def installed_entry_points() -> EntryPoints:
    """Return the entry points of all groups: reading them takes 10 ms, so it is done once."""
    return entry_points()


def find_functions(moment: str) -> Iterator[Callable[..., Any]]:
    """Yield the function of each feature that takes part in a moment."""
    for feature in find_features():
        if reference := getattr(feature, moment):
            yield load(reference)


def load(reference: str) -> Callable[..., Any]:
    """Return the function that `"module:function"` names."""
    module, _, name = reference.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
