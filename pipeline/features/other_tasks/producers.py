"""Finds the tasks of a dodo file that make our tasks' inputs, so that they run first.

The plan, not doit, knows what our tasks read, and it knows an exporter's reads only after the
exporter has run. So the producers of a task are looked up when its turn comes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.cli.doit_link import action_task
from pipeline.features.other_tasks.reads import (
    ReadPlace,
    find_config_folders,
    find_reads,
)
from pipeline.plan.places import Places
from pipeline.plan.plan import Plan
from pipeline.plan.tasks import ActionTask

_ORDER = ("export", "quantize", "compile", "link", "validate")


class Producers:
    """Finds other tasks by what they make. `tasks` has all tasks of a dodo file, by name."""

    def __init__(self, tasks: Mapping[str, Any]) -> None:
        self._tasks = tasks
        self._target_to_task: dict[str, str] = {}
        self._folder_to_tasks: dict[str, dict[str, None]] = {}

    def look_again(self, plan: Plan) -> None:
        """Index the targets of all other tasks again, since doit may have created more tasks."""
        self._target_to_task.clear()
        self._folder_to_tasks.clear()
        places = Places(plan.workspace)
        for task in self._tasks.values():
            if action_task(task) is not None:
                continue
            for target in task.targets:
                path = places.spell(os.path.normpath(os.path.join(places.root, target)))
                self._target_to_task[path] = task.name
                for folder in _find_listed(path):
                    self._folder_to_tasks.setdefault(folder, {})[task.name] = None

    def find(self, task: ActionTask) -> list[str]:
        """Return the tasks that make what an action reads, unless they wait for the action."""
        if not self._target_to_task:
            return []
        names = self._find_makers(find_reads(task))
        return [name for name in names if not self._waits_for(name, task)]

    def find_of_configs(self, plan: Plan) -> list[str]:
        """Return the tasks that make configs, unless they wait for an action."""
        names = self._find_makers(find_config_folders(plan))
        return [name for name in names if not any(self._find_awaited(name))]

    def _find_makers(self, reads: Iterable[ReadPlace]) -> dict[str, None]:
        """Return the tasks that make any of these places, or a folder that contains one."""
        names: dict[str, None] = {}
        for kind, path in reads:
            if kind == "listing":
                names |= self._folder_to_tasks.get(path, {})
            for place in (path, *_find_folders(path)):
                if place in self._target_to_task:
                    names[self._target_to_task[place]] = None
        return names

    def _waits_for(self, name: str, task: ActionTask) -> bool:
        """Return whether a task waits for an action, or for one that comes after the action."""
        export = task.model
        if task.package is not None:
            export = task.plan.export(task.package)
        for awaited in self._find_awaited(name):
            comes_before = _ORDER.index(awaited.kind) < _ORDER.index(task.kind)
            if awaited.package is None or task.package is None:
                package = awaited.package
                model = awaited.plan.export(package) if package else awaited.model
                is_related = model == export
            else:
                is_related = awaited.package == task.package
            if is_related and not comes_before:
                return True
        return False

    def _find_awaited(self, name: str) -> Iterator[ActionTask]:
        """Yield the actions that a task waits for, directly or through other tasks."""
        names = [name]
        seen = set()
        while names:
            name = names.pop()
            if name in seen or name not in self._tasks:
                continue
            seen.add(name)
            task = self._tasks[name]
            awaited = action_task(task)
            if awaited is not None:
                yield awaited
            names += [*task.task_dep, *task.setup_tasks, *task.calc_dep]


def _find_folders(path: str) -> Iterator[str]:
    """Yield the folders that contain a path, innermost first, without the workspace itself."""
    folder = os.path.dirname(path)
    while folder not in ("", "/", "~"):
        yield folder
        folder = os.path.dirname(folder)


def _find_listed(path: str) -> Iterator[str]:
    """Yield the folders whose listing a new file may change; any of its folders may be new too."""
    yield os.path.dirname(path) or "."
    yield from _find_folders(path)
