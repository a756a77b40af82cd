"""Prepares a run before its first action: checks the toolchain, starts workers, and prefetches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.cli.doit_link import action_task
from pipeline.moments import call_all
from pipeline.plan.plan import Plan
from pipeline.plan.tasks import ActionTask
from pipeline.store.digest import Digest
from pipeline.store.workspace import Workspace


def find_selected_tasks(task_dispatcher: Any) -> list[ActionTask]:
    """Return our tasks among those that a command line selects, by name or by group."""
    name_to_task = task_dispatcher.tasks
    names: dict[str, None] = {}
    for name in task_dispatcher.selected_tasks:
        names[name] = None
        if name_to_task[name].has_subtask:
            names |= dict.fromkeys(name_to_task[name].task_dep)
    tasks = []
    for name in names:
        task = action_task(name_to_task[name])
        if task is not None:
            tasks.append(task)
    return tasks


def check_command(workspace: Workspace, builds: bool) -> None:
    """Let features check a command before it starts. Raises PipelineError if one refuses it."""
    for _ in call_all("before_command", workspace, builds):
        pass


def check_run(tasks: Sequence[ActionTask]) -> None:
    """Let features check a run before it starts. Raises PipelineError if one refuses it."""
    if tasks:
        check_command(tasks[0].plan.workspace, builds=True)


def start_ahead(workspace: Workspace, workers: int, always: bool) -> None:
    """Start workers during planning if there is certainly work to do.

    That is the case if everything is to be rebuilt, or if nothing was built before, neither here
    nor with this store.
    """
    if workspace.executor:
        return
    if always or not (workspace.store.has_results() or workspace.has_states()):
        from pipeline.run.executors import local

        local.start_ahead(workspace, workers)


def count_units(tasks: Sequence[ActionTask]) -> int:
    """Return how many compile units the packages of these tasks have."""
    units = 0
    for task in _one_task_of_each_package(tasks):
        summary = task.plan.configs.summary(str(task.package))
        if summary is not None:
            units += len(summary.units)
    return units


def find_remote_blobs(tasks: Sequence[ActionTask]) -> Sequence[Digest]:
    """Return the blobs that a remote has for the packages of these tasks."""
    if not tasks or tasks[0].plan.workspace.store.remote is None:
        return ()
    plan = tasks[0].plan
    names = [str(task.package) for task in _one_task_of_each_package(tasks)]
    packages = [package for package in names if not plan.problems(package)]
    validates = any(task.kind == "validate" for task in tasks)
    return prefetch_packages(plan, sorted(packages), validates)


def prefetch_exports(plan: Plan, packages: Sequence[str]) -> None:
    """Fetch the records that identify the exports of packages, if there is a remote."""
    if plan.workspace.store.remote is not None:
        for _ in call_all("prefetch_exports", plan, packages):
            pass


def prefetch_packages(
    plan: Plan, packages: Sequence[str], validates: bool, looks_up_methods: bool = False
) -> list[Digest]:
    """Fetch the store entries that a build of these packages would look up, if there is a remote.

    Args:
        validates: whether packages are validated too.
        looks_up_methods: whether to look up the methods of already linked packages as well.

    Returns:
        The blobs that the build would take from the store.
    """
    blobs: list[Digest] = []
    if plan.workspace.store.remote is not None:
        for feature_blobs in call_all(
            "prefetch_packages", plan, packages, validates, looks_up_methods
        ):
            blobs += feature_blobs
    return blobs


def _one_task_of_each_package(tasks: Sequence[ActionTask]) -> list[ActionTask]:
    package_to_task = {task.package: task for task in tasks if task.package}
    return list(package_to_task.values())
