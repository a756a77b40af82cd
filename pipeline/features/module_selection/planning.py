"""Names of modules in the configs of a plan, each checked against its method."""

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
    """Return an empty summary of a config that limits a partitioner to modules; None for others."""
    for name, method in config.methods.items():
        if any(_find_lists(name, method)):
            return {}
    return None


def _find_lists(name: str, config: MethodConfig) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the path of each list of modules in a method's config, and the list."""
    path = join("methods", name)
    if config.modules is not None:
        yield f"{path}.modules", config.modules
    for number, spec in enumerate(config.partitioners):
        if spec.modules is not None:
            where = join(f"{path}.partitioners", number)
            yield f"{where}.{spec.name}.modules", spec.modules


class ModulePlanning(Planning):
    """Refuses names of modules that a method lacks, or has in several places, if it is known which
    modules it has; the others are checked when it is compiled."""

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
