"""Finds, for `doit plan`, the actions that wait for other tasks of a dodo file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from doit.control import TaskControl
from doit.dependency import CHECKERS, Dependency
from doit.loader import load_tasks

from pipeline.cli.doit_link import action_task, up_to_date
from pipeline.cli.selection import find_foreign_tasks
from pipeline.cli.workspace_loader import WorkspaceLoader
from pipeline.features.other_tasks.producers import Producers
from pipeline.features.other_tasks.states import RecordedStates
from pipeline.plan.plan import Plan
from pipeline.plan.status import Status
from pipeline.plan.tasks import ActionTask
from pipeline.store.errors import listed

_KINDS = ("link", "validate")


# doit's own defaults, for a dodo file that doesn't have our settings.
_DEFAULTS = {"dep_file": ".doit.db", "check_file_uptodate": "md5"}


def find_pending(plan: Plan, loader: WorkspaceLoader) -> dict[tuple[str, str], Status]:
    """Return the status of each action that waits for other tasks, keyed by package and kind.

    The kind "link" stands for everything that a package is linked from.
    """
    if loader.namespace is None or not find_foreign_tasks(loader.namespace):
        return {}
    tasks = load_tasks(loader.namespace, loader.cmd_names, allow_delayed=True)
    states = _read_states(loader.load_doit_config())
    waits = _Waits(plan, TaskControl(tasks).tasks, states)
    pending = {}
    for package in plan.packages:
        for kind in _KINDS:
            names = waits.find(ActionTask(plan, kind, plan.model(package), package))
            if names:
                words = f"{listed(names, 3)} runs first"
                pending[package, kind] = Status("waiting", words)
    return pending


def _read_states(config: Mapping[str, Any]) -> Dependency | None:
    """Return doit's record of task states, or None if no such record can be read on its own."""
    config = {**_DEFAULTS, **config}
    if config["backend"] != "sqlite3" or not os.path.isfile(config["dep_file"]):
        return None
    check = config["check_file_uptodate"]
    checker = CHECKERS.get(check, check)
    return Dependency(RecordedStates, config["dep_file"], checker)


class _Waits:
    """Finds tasks that are out of date, or that depend on one that is."""

    def __init__(self, plan: Plan, tasks: Mapping[str, Any], states: Any) -> None:
        self._tasks = tasks
        self._states = states
        self._producers = Producers(tasks)
        self._producers.look_again(plan)
        self._will_run: dict[str, bool] = {}

    def find(self, task: ActionTask) -> list[str]:
        """Return the tasks that a run does first because they make files that an action reads."""
        return [name for name in self._producers.find(task) if self._runs(name)]

    def _runs(self, name: str) -> bool:
        if name not in self._will_run:
            self._will_run[name] = False  # if the task waits for itself
            before = any(map(self._runs, self._find_awaited(name)))
            self._will_run[name] = before or self._is_stale(self._tasks[name])
        return self._will_run[name]

    def _find_awaited(self, name: str) -> Iterator[str]:
        """Yield the tasks that must come before a task."""
        task = self._tasks[name]
        yield from (*task.task_dep, *task.calc_dep)
        action = action_task(task)
        if action is not None:
            yield from self._producers.find(action)

    def _is_stale(self, task: Any) -> bool:
        """Return whether a task itself is out of date. A group has no state except its members'."""
        check = up_to_date(task)
        if check is not None:
            return not check.is_current()
        if not task.actions:
            return False
        if self._states is None:
            return True
        status: str = self._states.get_status(task, self._tasks).status
        return status != "up-to-date"
