"""Builds packages, and trials with another config in a temporary folder.

A trial shares the workspace's sources and store, so it costs only what differs, and its results are
hits once the config says the same.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.cli.batches import open_batch
from pipeline.plan.actions import Action
from pipeline.plan.files import loadable
from pipeline.plan.plan import Plan
from pipeline.plan.tasks import find_action, find_status
from pipeline.plan.trial import TRIAL_BUILD, TRIAL_CONFIGS, make_trial_plan
from pipeline.run.action_log import logging_to
from pipeline.run.isolated import run_isolated
from pipeline.store.errors import PipelineError
from pipeline.store.files import REPORT, make_folder, read_record
from pipeline.store.scratch import scratch_folder

LOG = "sensitivity.log"
_PREFIX = ".sensitivity-"


@contextmanager
def open_trial(plan: Plan, texts: Mapping[str, str]) -> Iterator[Plan]:
    """Yield the plan of a workspace with other configs, which exists until the end of the block.

    Args:
        texts: the contents of configs, by file name.
    """
    with scratch_folder(_PREFIX, plan.workspace.build) as folder:
        configs = folder / TRIAL_CONFIGS
        shutil.copytree(plan.workspace.configs, configs)
        for name, text in texts.items():
            (configs / name).write_text(text, encoding="utf-8")
        (folder / TRIAL_BUILD).mkdir()
        yield make_trial_plan(plan.workspace, folder)


def build_package(plan: Plan, package: str) -> None:
    """Build the stale parts of a package. Raises PipelineError if it can't be built."""
    plan.check(package)
    with open_batch(plan, sys.stderr) as batch:
        for kind in ("export", "quantize", "compile", "link"):
            actions = list(_find_stale(plan, kind, package))
            for action, event in batch.run(actions):
                if event.error:
                    raise PipelineError(f"{action.title} failed: {event.error}")
            if kind == "export" and actions:
                plan.forget(str(plan.exporter(package)))
                plan.check(package)


def validate_package(plan: Plan, package: str) -> Mapping[str, Any]:
    """Return the report of a built package, validating it first if necessary.

    The package need not pass. Raises PipelineError if there is no report.
    """
    error: str | None = None
    if find_status(plan, "validate", package).state != "up-to-date":
        action = find_action(plan, "validate", package)
        with open_batch(plan, sys.stderr) as batch:
            for _, event in batch.run([action] if action else []):
                error = event.error
    report = read_record(plan.workspace.package(package) / REPORT)
    if not isinstance(report, Mapping):
        raise PipelineError(f"validate {package} failed: {error}")
    return report


def _find_stale(plan: Plan, kind: str, package: str) -> Iterator[Action]:
    """Yield the actions of a kind whose results are missing."""
    names: list[tuple[str, Sequence[str]]] = []
    if kind == "export":
        names += [(export, ()) for export in filter(None, [plan.exporter(package)])]
    elif kind == "link":
        names.append((package, ()))
    else:
        for member in plan.linked_from(package):
            units = plan.units(member)
            if kind == "quantize":
                units = tuple((method,) for method in plan.quantized(member))
            names += [(member, unit) for unit in units]
    done = ("up-to-date",) if kind == "link" else ("up-to-date", "hit")
    for name, unit in names:
        if find_status(plan, kind, name, unit).state not in done:
            action = find_action(plan, kind, name, unit)
            if action is not None:
                yield action


def run_logged(
    plan: Plan, package: str, function: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return the result of a function run in a separate process, whose output goes to a log."""
    folder = plan.workspace.logs / package
    make_folder(folder, plan.workspace.build)
    with logging_to(folder / LOG):
        result: dict[str, Any] = run_isolated(function)
    return result


def count_bytes(plan: Plan, package: str) -> int:
    """Return the total bytes of the files of a built package that a device loads."""
    return sum(path.stat().st_size for path in list_files(plan, package))


def list_files(plan: Plan, package: str) -> list[Path]:
    """Return the files of a built package that a device loads."""
    folder = plan.workspace.package(package)
    files = plan.workspace.state(package)["link"]["files"]
    return [folder / name for name in sorted(loadable(files))]
