"""Checks the module names in a plan's configs against the methods that they select from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.features.module_selection.names import check_names
from pipeline.plan.planning import Json, Planning
from pipeline.program.sources import MethodSource
from pipeline.store.errors import Problem, join

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import MethodConfig, PackageConfig


def summarize(config: PackageConfig, has_variables: bool) -> Json | None:
    """Return an empty summary if a config limits any partitioner to modules; otherwise None."""
    for name, method in config.methods.items():
        if any(_find_lists(name, method)):
            return {}
    return None


def _find_lists(name: str, config: MethodConfig) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the path and the names of each list of modules in a method's config."""
    path = join("methods", name)
    if config.modules is not None:
        yield f"{path}.modules", config.modules
    for number, spec in enumerate(config.partitioners):
        if spec.modules is not None:
            where = join(f"{path}.partitioners", number)
            yield f"{where}.{spec.name}.modules", spec.modules


class ModulePlanning(Planning):
    """Refuses module names that a method lacks, or that could mean several of its modules or calls.

    If the modules of a method aren't known yet, its names are checked when it is compiled.
    """

    def find_model_problems(
        self,
        config: PackageConfig,
        document: Document,
        methods: Mapping[str, MethodSource],
    ) -> Iterator[Problem]:
        for name in filter(methods.__contains__, config.methods):
            for where, names in _find_lists(name, config.methods[name]):
                outline = self.plan.models.archives.outline(methods[name])
                if outline is None:
                    break
                for mistake, hint in check_names(names, outline):
                    yield document.problem(where, mistake, hint)
