"""Checks, while planning, the files of input sets that configs name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pipeline.features.input_files.damage import SUFFIXES, describe_damage
from pipeline.plan.planning import Json, Planning
from pipeline.store.errors import Problem, join

if TYPE_CHECKING:  # a no-op run parses no config and avoids pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig


def _iter_files(config: PackageConfig) -> Iterator[tuple[str, str]]:
    """Yield each file of input sets in a config, after the path of the key that names it."""
    named = {}
    for name, method in config.methods.items():
        for place, files in method.files.items():
            named[f"{join('methods', name)}.{place}"] = files
    for name, limits in config.validation.methods.items():
        named[f"{join('validate.methods', name)}.examples"] = limits.examples or ()
    for place, files in named.items():
        for file in files:
            if file.endswith(SUFFIXES):
                yield place, file


def summarize(config: PackageConfig, has_variables: bool) -> Json | None:
    """Return the files of input sets that a config names, or None if it names none."""
    files = {file for _, file in _iter_files(config)}
    return {"files": sorted(files)} if files else None


class InputFilePlanning(Planning):
    """Refuses files with invalid headers; the arrays themselves are read when they are used."""

    def find_problems(
        self, package: str, config: PackageConfig, document: Document
    ) -> Iterator[Problem]:
        workspace = self.plan.workspace
        for place, file in _iter_files(config):
            if workspace.find_data(file) is None:  # reported elsewhere as missing
                continue
            if damage := describe_damage(workspace.root / file):
                kind = file.rpartition(".")[2]
                fault = f"{file}: cannot be read as a .{kind} file ({damage})"
                yield document.problem(place, fault, "save it again")

    def problem_facts(self, package: str) -> Any:
        summary = self.plan.configs.summary(package)
        facts = {}
        for file in summary.features["input_files"]["files"]:
            facts[file] = self.plan.workspace.find_data(file)
        return facts
