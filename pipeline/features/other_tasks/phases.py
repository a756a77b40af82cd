"""Runs our tasks among the other tasks of a dodo file: the order, and what to check again.

Selected tasks run in the order of the command line, as with doit itself; adjacent tasks of ours run
together. A task that makes files that one of our tasks reads runs before it. Any other task may
change the workspace, so afterwards the plan forgets what it has read, and our tasks are created
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from doit.control import TaskDispatcher
from doit.task import Task

from pipeline.cli.commands import GROUPS
from pipeline.cli.doit_link import action_task
from pipeline.cli.grammar import quoted
from pipeline.cli.runner import FAMILY
from pipeline.features.other_tasks.producers import Producers
from pipeline.plan.plan import Plan
from pipeline.plan.tasks import ActionTask
from pipeline.store.digest import hash_json
from pipeline.store.distributions import identity, module_identity
from pipeline.store.startup import startup_code
from pipeline.store.toolchain import toolchain

_NOT_ENDED = (None, "run")


class OtherTasks:
    """The other tasks of a dodo file, and the order in which ours run between them.

    Attributes:
        dispatcher: doit's dispatcher of the phase that is running.
    """

    def __init__(self, plan: Plan, make_tasks: Callable[[], list[Task]]) -> None:
        """Take the plan, and a function that creates our tasks again."""
        self.dispatcher: Any = None
        self._plan = plan
        self._make_tasks = make_tasks
        self._producers: Producers | None = None
        self._plan_is_old = False
        self._tasks_are_old = False
        self._workers_are_old = False
        self._renewed: set[str] = set()

    def note_run(self) -> None:
        """Note that another task ran, since it may have changed anything."""
        self._plan_is_old = True
        self._tasks_are_old = True

    def look_again(self) -> None:
        """Make the plan check the workspace again if another task has run since the last check."""
        if self._plan_is_old:
            self._plan_is_old = False
            self._renewed.clear()
            # In case another task changed what is installed, or runs at Python's start.
            identity.cache_clear()
            module_identity.cache_clear()
            startup_code.cache_clear()
            self._workers_are_old |= _has_other_toolchain(self._plan)
            self._plan.look_again()
            self._workers_are_old |= has_code_for_workers(self._plan)
            self._find_producers(self.dispatcher.tasks).look_again(self._plan)

    def needs_new_workers(self) -> bool:
        """Return whether workers may have imported code that has since changed; reset the flag."""
        self.look_again()
        is_needed = self._workers_are_old
        self._workers_are_old = False
        return is_needed

    # Phases

    def phases(self, dispatcher: Any) -> Iterator[Any]:
        """Yield a dispatcher for each phase of the selected tasks, in order."""
        self.dispatcher = dispatcher
        for names in self._divide(dispatcher):
            phase = TaskDispatcher(dispatcher.tasks, dispatcher.targets, names)
            phase.nodes = dispatcher.nodes
            self.dispatcher = phase
            if self._tasks_are_old and self._are_ours(names):
                self._renew_tasks()
            yield phase
            while phase.ready:  # exports that start again after all other tasks
                phase.generator = phase._dispatcher_generator([])
                yield phase

    def _divide(self, dispatcher: Any) -> Iterator[list[str]]:
        """Yield the names of the tasks that make configs, then the selected tasks in order.

        Each item is a run of adjacent tasks of ours, or one other task.
        """
        selected = list(dispatcher.selected_tasks)
        if any(self._are_ours([name]) for name in selected):
            makers = self._find_producers(dispatcher.tasks).find_of_configs(self._plan)
            if makers:
                yield makers
        ours: list[str] = []
        for name in selected:
            if self._are_ours([name]):
                ours.append(name)
                continue
            if ours:
                yield ours
                ours = []
            yield [name]
        if ours:
            yield ours

    def _are_ours(self, names: Iterable[str]) -> bool:
        return all(_is_ours(self.dispatcher.tasks[name]) for name in names)

    def _renew_tasks(self) -> None:
        """Create our tasks again, and forget the state of those that didn't fail.

        doit then checks them again if another task needs them.
        """
        self.look_again()
        self._tasks_are_old = False
        tasks = self.dispatcher.tasks
        nodes = self.dispatcher.nodes
        for name, node in list(nodes.items()):
            if _is_ours(node.task) and node.run_status != "failure":
                del nodes[name]
        for task in self._make_tasks():
            if task.name not in nodes:
                tasks[task.name] = task
            for target in task.targets:
                self.dispatcher.targets.setdefault(target, task.name)

    # What comes first

    def has_to_wait(self, node: Any) -> bool:
        """Make a task of ours wait for the tasks that make what it reads.

        The task is one that doit hasn't checked yet. Returns whether this adds any tasks to wait
        for.
        """
        task = action_task(node.task)
        if task is None or node.run_status is not None:
            return False
        self.look_again()
        names = []
        for name in self._find_producers(self.dispatcher.tasks).find(task):
            if name not in node.task.task_dep:
                names.append(name)
        if names:
            self._restart(node, names)
        return bool(names)

    def exports_again(self, node: Any) -> list[str]:
        """Queue an export that has just run or failed to run again, after other tasks.

        These tasks make what it turned out to read and haven't run yet; they are returned.
        """
        task = action_task(node.task)
        if task is None or task.kind != "export":
            return []
        self._plan.forget(str(task.model))
        names = []
        for name in self._find_producers(self.dispatcher.tasks).find(task):
            if self._is_to_run(name):
                names.append(name)
        if names:
            self._restart(node, names)
            self.dispatcher.ready.append(node)
        return names

    def export_again(self, node: Any, task: ActionTask) -> bool:
        """Make a task wait for its export to run again.

        The export's inputs changed after it ran.

        Returns:
            Whether the export runs again: not if there is none, or if it has already been repeated.
        """
        export = self._plan.export(str(task.package))
        name = f"export:{quoted(str(export))}"
        if name in self._renewed or name not in self.dispatcher.tasks:
            return False
        self._renewed.add(name)
        self.dispatcher.nodes.pop(name, None)
        self._restart(node, [name])
        self.dispatcher.ready.append(node)
        return True

    def _is_to_run(self, name: str) -> bool:
        node = self.dispatcher.nodes.get(name)
        return node is None or node.run_status in _NOT_ENDED

    def _restart(self, node: Any, names: Iterable[str]) -> None:
        """Make doit start a task over, after the named tasks."""
        node.task.task_dep += [n for n in names if n not in node.task.task_dep]
        node.run_status = None
        node.bad_deps = []
        node.ignored_deps = []
        node.reset_task(node.task, self.dispatcher._add_task(node))

    def _find_producers(self, tasks: Any) -> Producers:
        if self._producers is None:
            self._producers = Producers(tasks)
            self._producers.look_again(self._plan)
        return self._producers


def _has_other_toolchain(plan: Plan) -> bool:
    """Return whether the version of any plugin or library that matters to a config has changed."""
    for distributions, digest in plan.configs.toolchains.items():
        if hash_json(toolchain(distributions)) != digest:
            return True
    return False


def has_code_for_workers(plan: Plan) -> bool:
    """Return whether workers import code of the workspace: passes or operator libraries."""
    if plan.workspace.operators:
        return True
    for package in plan.packages:
        summary = plan.configs.summary(package)
        if summary is not None and (summary.passes or summary.operators):
            return True
    return False


def _is_ours(task: Task) -> bool:
    """Return whether a task is one of our actions or a group of them."""
    if task.actions:
        return action_task(task) is not None
    return task.name in GROUPS or task.name.partition(":")[0] == FAMILY
