"""Finds the inputs of an exporter that its text and its imports declare.

These are the files that `INPUTS` names, and the modules that it imports.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from pipeline.plan.kinds.export import ExportInputs
from pipeline.plan.places import Kind
from pipeline.plan.reads import Finder, Reads
from pipeline.run.isolated import ForkWatch
from pipeline.store.errors import SourceError
from pipeline.store.workspace import Workspace

OWN = "pte-pipeline"  # part of every key as `code`
_WITH_TORCH = ("mpmath", "sympy")  # they compute sizes in all programs
_ALWAYS = ("pipeline", "pte_pipeline", "dodo", "__main__", "__mp_main__")
_UNFOLLOWED = "without the feature tracing, the files that {} reads are unknown"
Seen = dict[tuple[Kind, str], str | None]


class DeclaredReads:
    """Finds the inputs of an exporter.

    `watch` observes the exporter's process; `find` then returns the inputs. An exporter that
    declares nothing is exported again in each run. This is the base class of
    `moments.Feature.watch_exporter`.

    Attributes:
        finder: looks up the current state of a place.
        declared: the files that the exporter declares.
    """

    watch: ForkWatch

    def __init__(self, workspace: Workspace, inputs: ExportInputs) -> None:
        self.finder = Finder(workspace, inputs.surroundings)
        self.watch = ForkWatch()
        self._workspace = workspace
        self._places = self.finder.places
        self._inputs = inputs
        declared = inputs.declared
        self.declared = declared.find(self._places, inputs.path) if declared else []
        self._before: Seen = {
            ("file", name): self.finder.observe("file", name) for name in self.declared
        }

    def find(
        self, modules: list[str], distributions: list[str], all_distributions: bool
    ) -> Reads:
        """Return the inputs that the exporter read.

        Args:
            modules: the top-level names that it imported or looked for.
            distributions: those it queried through importlib.
            all_distributions: whether it queried all of them.

        Raises:
            SourceError: it read an undeclared input, or an input changed meanwhile.
        """
        self._check_unchanged()
        files = {*self.declared, *self._imported_files()}
        environment = set()
        unfollowed = []
        if self._inputs.declared is None:
            unfollowed.append(_UNFOLLOWED.format(self._inputs.path))
        else:
            environment = {*self._inputs.declared.environment}
        return Reads(
            files=tuple(sorted(files)),
            environment=tuple(sorted(environment)),
            modules=self._imported_modules(modules),
            distributions=tuple(
                sorted(self._distributions(modules) | set(distributions))
            ),
            unfollowed=tuple(unfollowed),
        )

    def find_looked_at(self, error: Exception) -> Reads:
        """Return the places where a failed exporter looked for an input, which may appear there.

        For an import error, that is the module that was not found.
        """
        return Reads(modules=tuple(re.findall(r"No module named '(\w+)", str(error))))

    def _check_unchanged(self) -> None:
        after = Finder(self._workspace, self._inputs.surroundings, self._places)
        for (kind, name), value in self._before.items():
            if after.observe(kind, name) != value:
                raise SourceError(f"{name}: changed while the exporter ran; run again")

    def _imported_files(self) -> Iterator[str]:
        """Yield the files of imported modules that are not part of an installed distribution."""
        for path in self.watch.modules.values():
            name = self._places.spell(path)
            if self._places.wanted(path) and name != self._inputs.path:
                yield name

    def _imported_modules(self, modules: Iterable[str]) -> tuple[str, ...]:
        folder = os.path.dirname(self._inputs.path)
        return tuple(sorted({*modules} - {folder, *_ALWAYS}))

    def _distributions(self, modules: Iterable[str]) -> set[str]:
        named: set[str] = set()
        for name in modules:
            named.update(installed_distributions().get(name, ()))
        declared = self._inputs.declared
        declared_distributions = declared.distributions if declared else ()
        return {*named, *declared_distributions, *_WITH_TORCH} - {OWN}


@cache
def installed_distributions() -> Mapping[str, list[str]]:
    """Return the installed distributions by module name; this reads hundreds of files."""
    return importlib.metadata.packages_distributions()
