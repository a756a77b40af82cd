"""Finds mistakes in the libraries of custom operators that a plan's configs name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.features.operators.finding import FOLDER, may_load, remedy
from pipeline.plan.planning import Json, Planning
from pipeline.store.errors import Problem, join
from pipeline.store.json_diff import Difference

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig


def summarize(config: PackageConfig, has_variables: bool) -> Json | None:
    """Return an empty summary if a config names libraries, or None if it names none.

    The core keeps the names of the libraries.
    """
    return {} if config.operators else None


class LibraryPlanning(Planning):
    """Reports libraries that configs may not name."""

    def find_problems(
        self, package: str, config: PackageConfig, document: Document
    ) -> Iterator[Problem]:
        workspace = self.plan.workspace
        for number, library in enumerate(config.operators):
            if not may_load(library, workspace):
                neither = "not"
                if workspace.operators_folder:
                    neither = f"neither in {FOLDER}/ nor"
                mistake = f"{library} is {neither} listed by the workspace's settings"
                where = join("operators", number)
                yield document.problem(where, mistake, remedy(workspace))


def describe_key(difference: Difference) -> str | None:
    """Describe a difference between two keys in operator libraries; return None for others."""
    change = difference.change()
    match difference.path:
        case ("operator_inputs", library, name):
            return f"{name}, of the operators in {library}, {change}"
        case ("operator_inputs", library):
            return f"the library of operators {library} {change}"
        case (place, *_) if place.startswith("operator"):
            return "libraries of operators changed"
    return None
