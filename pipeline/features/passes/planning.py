"""Planning of passes: finds mistakes in the passes that a config names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.features.passes.finding import NOT_OFFERED, remedy, source_files
from pipeline.plan.planning import Json, Planning
from pipeline.store.errors import Problem, join
from pipeline.store.json_diff import Difference

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig


def summarize(config: PackageConfig, has_variables: bool) -> Json | None:
    """Return an empty summary for a config that names passes, and None for any other.

    The core records which passes they are.
    """
    return {} if any(config.pass_references(config.methods)) else None


class PassPlanning(Planning):
    """Reports passes that no config may name."""

    def find_problems(
        self, package: str, config: PackageConfig, document: Document
    ) -> Iterator[Problem]:
        root = self.plan.workspace.root
        for path, references in _find_lists(config).items():
            for number, reference in enumerate(references):
                if ":" in reference and not source_files(reference, root):
                    mistake = f"the pass {reference} {NOT_OFFERED}"
                    where = join(path, number)
                    yield document.problem(where, mistake, remedy(reference))


def _find_lists(config: PackageConfig) -> Mapping[str, Sequence[str]]:
    """Return the references in a config, by the path of each list of passes or algorithms."""
    lists = {}
    for name, method in config.methods.items():
        for place, passes in method.passes.items():
            path = f"methods.{name}.{place}"
            lists[path] = [spec.reference for spec in passes]
    lists["emit.passes"] = [spec.reference for spec in config.emit.passes]
    for path, planning in config.memory_plans():
        lists[f"{path}.algorithm"] = list(planning.algorithm)
    return lists


def describe_key(difference: Difference) -> str | None:
    """Describe a key difference that lies in a compilation's passes; return None for any other."""
    match difference.path:
        case ("passes", reference, name):
            return f"{name}, of the pass {reference}, {difference.change()}"
        case ("passes", *_):
            return "passes of the config changed"
    return None
