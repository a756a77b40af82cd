"""Which actions wait for other tasks of a dodo file that a run would do first: for `doit plan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.cli.doit_link import action_task, up_to_date
from pipeline.features.other_tasks.producers import Producers
from pipeline.plan.plan import Plan
from pipeline.plan.tasks import ActionTask

_KINDS = ("link", "validate")


def find_pending(
    plan: Plan, tasks: Mapping[str, Any], states: Any
) -> dict[tuple[str, str], list[str]]:
    """Return the tasks that run before an action, by its package and its kind: "link" stands for
    all that a package is linked from.

    Args:
        tasks: all of a dodo file, by name.
        states: doit's `Dependency`, or None where doit has recorded nothing yet.
    """
    waits = _Waits(plan, tasks, states)
    pending = {}
    for package in plan.packages:
        for kind in _KINDS:
            names = waits.find(ActionTask(plan, kind, plan.model(package), package))
            if names:
                pending[package, kind] = names
    return pending


class _Waits:
    """Tells which tasks are not up to date, or come after one that isn't."""

    def __init__(self, plan: Plan, tasks: Mapping[str, Any], states: Any) -> None:
        self._tasks = tasks
        self._states = states
        self._producers = Producers(tasks)
        self._producers.look_again(plan)
        self._will_run: dict[str, bool] = {}

    def find(self, task: ActionTask) -> list[str]:
        """Return the tasks that make what an action reads and that a run does first."""
        return [name for name in self._producers.find(task) if self._runs(name)]

    def _runs(self, name: str) -> bool:
        if name not in self._will_run:
            self._will_run[name] = False  # of a task that waits for itself
            before = any(map(self._runs, self._find_awaited(name)))
            self._will_run[name] = before or self._is_stale(self._tasks[name])
        return self._will_run[name]

    def _find_awaited(self, name: str) -> Iterator[str]:
        """Yield the tasks that a task comes after."""
        task = self._tasks[name]
        yield from (*task.task_dep, *task.calc_dep)
        action = action_task(task)
        if action is not None:
            yield from self._producers.find(action)

    def _is_stale(self, task: Any) -> bool:
        """Return whether a task is not up to date by itself. A group of tasks is what these are."""
        check = up_to_date(task)
        if check is not None:
            return not check.is_current()
        if not task.actions:
            return False
        if self._states is None:
            return True
        status: str = self._states.get_status(task, self._tasks).status
        return status != "up-to-date"
