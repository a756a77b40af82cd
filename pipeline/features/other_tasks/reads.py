"""Finds the places that actions read in a workspace, so that tasks that make them run first."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from pipeline.plan.golden import FOLDER as GOLDEN
from pipeline.plan.places import Kind
from pipeline.plan.plan import Plan
from pipeline.plan.tasks import ActionTask
from pipeline.store.errors import SourceError
from pipeline.store.workspace import BASELINES

_SOURCE_SUFFIXES = (".py", ".pt2")
_NO_PATH = ("import ", "$", "lib:")  # prefixes of a pass's inputs that aren't paths
_TARGETS = "targets"  # the folder of the files that `target` names
ReadPlace = tuple[Kind, str]


def find_reads(task: ActionTask) -> Iterator[ReadPlace]:
    """Yield the places that an action is known to read, before it runs."""
    plan = task.plan
    if task.kind == "export":
        yield from _find_export_reads(plan, str(task.model))
    else:
        package = str(task.package)
        for member in plan.linked_from(package):
            yield from _find_package_reads(plan, member)
    if task.kind == "validate":
        yield from _find_validation_reads(plan, str(task.package))


def _find_export_reads(plan: Plan, export: str) -> Iterator[ReadPlace]:
    """Yield the exporter and the places that its last run read, even if that run failed."""
    model = plan.models.source(export)
    yield "file", str(model.path.relative_to(plan.workspace.root))
    with suppress(SourceError):  # it is reported when the export's turn comes
        declared = plan.models.declared(export)
        for pattern in declared.patterns if declared is not None else ():
            yield from _find_pattern_places(pattern)
        reads = plan.models.export(export).inputs.reads
        for name in reads.get("files", ()):
            yield "file", name
        for name in reads.get("listings", ()):
            yield "listing", name
        for name in reads.get("links", ()):
            yield "link", name
        for name in reads.get("modules", ()):
            for folder in ("", f"{plan.workspace.models.name}/"):
                yield "listing", f"{folder}{name}"
                yield "file", f"{folder}{name}.py"


def _find_pattern_places(pattern: str) -> Iterator[ReadPlace]:
    """Yield the places of the files that an exporter's pattern matches; they may not exist yet."""
    fixed = re.split(r"[*?[]", pattern, maxsplit=1)[0]
    if fixed == pattern:
        yield "file", pattern
        yield "listing", pattern
    else:
        yield "listing", os.path.dirname(fixed) or "."


def _find_package_reads(plan: Plan, package: str) -> Iterator[ReadPlace]:
    """Yield the places where a package's model may be, and the files that its config names."""
    summary = plan.configs.summary(package)
    if summary is None:
        return
    if plan.exporter(package) is not None:
        yield from _find_export_reads(plan, summary.export)
    model = f"{plan.workspace.models.name}/{summary.model}"
    yield "listing", model  # if the model is a folder of archives
    for suffix in _SOURCE_SUFFIXES:
        yield "file", f"{model}{suffix}"
    for name in summary.files:
        yield "file", name
    with suppress(SourceError):  # it is reported when the package's turn comes
        for inputs in plan.inputs.code(package):
            for name in inputs:
                if not name.startswith(_NO_PATH):
                    yield "file", name


def _find_validation_reads(plan: Plan, package: str) -> Iterator[ReadPlace]:
    """Yield the places that only the validation of a package reads."""
    yield "file", f"{BASELINES}/{package}.yaml"
    export = plan.export(package)
    if export is not None:
        yield "listing", f"{GOLDEN}/{export}"


def find_config_folders(plan: Plan) -> Iterator[ReadPlace]:
    """Yield the folders whose files determine which packages exist."""
    yield "listing", plan.workspace.configs.name
    yield "listing", _TARGETS
