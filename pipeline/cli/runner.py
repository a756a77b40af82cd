"""doit's runner for our tasks: it gives all ready and stale tasks to one pool.

doit walks the graph and yields tasks as their dependencies end. Our tasks are collected until doit
has no other task to yield, and then join those that are already running. Each task that ends lets
doit continue, so that no worker is idle while an action is ready. Any other task in the same dodo
file is executed as doit would, while none of ours is running. A feature decides how such a task
affects ours.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

from doit.runner import FAILURE

from pipeline.cli.ahead import (
    check_run,
    count_units,
    find_selected_tasks,
    start_ahead,
)
from pipeline.cli.doit_link import action_task, is_foreign, up_to_date
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.run_options import RunOptions
from pipeline.cli.standing import find_standing, is_all_accepted
from pipeline.cli.terminal import as_it_is
from pipeline.cli.worker_tasks import WorkerTasks
from pipeline.plan.plan import Plan
from pipeline.plan.tasks import ActionTask
from pipeline.report.events import INTERRUPTED, make_event
from pipeline.store.errors import PipelineError

_FAILURE_BEFORE = "a failure ended the run"
FAMILY = "_family"  # the task group of each family


class BatchRunner(WorkerTasks):
    """Runs tasks in place of doit's runners."""

    def __init__(
        self, *arguments: Any, jobs: int, options: RunOptions, others: Any = None
    ) -> None:
        """Take doit's arguments for a runner, and those of this package.

        Args:
            jobs: the number of processes of `doit -n`.
            options: the options after the names of tasks.
            others: a feature's handler for other tasks of the dodo file, if there are any.
        """
        super().__init__(*arguments, jobs=options.jobs or jobs, others=others)
        self.always_execute: bool = self.always_execute or options.always
        # `doit -v 2` is doit's own way to ask for it.
        self.reporter.verbose = options.verbose or (
            self.stream.force_global and self.stream.verbosity > 1
        )
        self.reporter.methods_of = options.methods_of

    # Scheduling

    def run_tasks(self, task_dispatcher: Any) -> None:
        with Interrupts() as interrupts:
            try:
                self._run_until(interrupts, task_dispatcher)
            except KeyboardInterrupt:
                self._leave_out_the_rest(INTERRUPTED)
            finally:
                self._close(task_dispatcher, bool(interrupts.status))
                self.final_result = interrupts.status or self.final_result

    def _leave_out_the_rest(self, reason: str) -> None:
        """Mark all unfinished tasks as not run, after a signal or a failure that ends the run."""
        nodes = list(self._ready)
        for waiting_tasks in self._under_way.values():
            nodes += [waiting.node for waiting in waiting_tasks]
        for node in nodes:
            if node.run_status == "run":
                self._not_run(node, reason)

    def _run_until(self, interrupts: Interrupts, task_dispatcher: Any) -> None:
        """Run all tasks, unless a signal raises KeyboardInterrupt."""
        try:
            self._selected = tasks = find_selected_tasks(task_dispatcher)
            check_run(tasks)
            self._prepare_workers(tasks)
            self._fetch_ahead(tasks)
            if self._others is None:
                self._walk(task_dispatcher)
            else:
                for phase in self._others.phases(task_dispatcher):
                    self._walk(phase)
                    if self._stop_running:
                        break
        finally:
            interrupts.hold()

    def _prepare_workers(self, tasks: list[ActionTask]) -> None:
        """Start workers for the selected packages, if they will certainly be needed."""
        if tasks:
            workspace = tasks[0].plan.workspace
            workspace.store.forget_overflow()
            workers = min(self._jobs or workspace.jobs, count_units(tasks))
            start_ahead(workspace, workers, self.always_execute)

    def _walk(self, task_dispatcher: Any) -> None:
        """Walk the graph to its end."""
        settled: deque[Any] = deque()
        while not self._stop_running:
            try:
                node = task_dispatcher.generator.send(
                    settled.popleft() if settled else None
                )
            except StopIteration:
                node = None
            if node is not None and node != "hold on":
                self._take(node, task_dispatcher, settled)
            elif settled:
                continue
            elif self._ready:
                settled += self._give_to_workers()
            elif self._under_way:
                settled += self._wait_for_workers(task_dispatcher)
            else:
                break
        self._drop_waiting()
        while self._under_way:  # running actions, after a failure ended the run
            self._wait_for_workers(task_dispatcher)
        self._leave_out_the_rest(_FAILURE_BEFORE)
        self._close_batch()

    def _take(self, node: Any, dispatcher: Any, settled: deque[Any]) -> None:
        """Collect a stale task of ours; settle any other task now, unless it has to wait."""
        task = action_task(node.task)
        if task is not None:
            node.bad_deps = _without_family(node.bad_deps)
            if self._others is not None and self._others.has_to_wait(node):
                return
        if node.bad_deps and (task is not None or not node.task.actions):
            names = ", ".join(dependency.task.name for dependency in node.bad_deps)
            self._not_run(node, f"{names} failed")
            self._failed()
        elif task is not None and self._comes_from_store(node, task):
            pass
        elif not self._select(node, dispatcher):
            if task is not None and node.run_status == "up-to-date":
                self._note(task, make_event(task, "up-to-date", reason="unchanged"))
        elif task is not None:
            self._ready.append(node)
            return
        elif node.task.has_subtask and not node.task.actions:
            # doit would also write its state, which nothing reads, and wait for the disk.
            self.execute_task(node.task)
            node.run_status = "successful"
            self.reporter.add_success(node.task)
        else:
            if is_foreign(node.task):  # it may change files that ours read
                settled += self._finish_what_runs(dispatcher)
            with as_it_is() if is_foreign(node.task) else contextlib.nullcontext():
                self.process_task_result(node, self.execute_task(node.task))
            if self._others is not None and is_foreign(node.task):
                self._others.note_run()
        settled.append(node)

    def _select(self, node: Any, dispatcher: Any) -> Any:
        """Make the method tasks of a stale package, and let doit select the task."""
        check = up_to_date(node.task)
        if check is not None and check.setup is not None and node.run_status is None:
            is_stale = self.always_execute or not check.is_current()
            node.task.setup_tasks = []
            for task in check.setup() if is_stale else ():
                # Another package of a family may have made it, and it may already be running.
                if task.name not in dispatcher.nodes:
                    dispatcher.tasks[task.name] = task
                if task.name.startswith("compile:"):
                    node.task.setup_tasks.append(task.name)
        return self.select_task(node, dispatcher.tasks)

    def _comes_from_store(self, node: Any, task: ActionTask) -> bool:
        """Return whether a task's result is in the store, so that its setup tasks can be skipped.

        doit then need not visit the methods of a linked package, or quantize a compiled method.
        """
        if node.run_status is not None or self.always_execute:
            return False
        check = up_to_date(node.task)
        assert check is not None
        try:
            status = check.status()
            is_hit = status.state == "hit" and task.traits.subsumes
            action = task.action() if is_hit else None
        except PipelineError:  # shown when the task's turn comes
            return False
        if action is None or not self._settle(node, task, status, action):
            return False
        self.record.count_spared(task.plan.workspace.store, action)
        self.reporter.execute_task(node.task)
        return True

    def _close(self, task_dispatcher: Any, interrupted: bool) -> None:
        self._close_pool()
        self._lease.close()
        plan = _find_plan(task_dispatcher)
        if plan is not None and self.record.events:
            standing = find_standing(plan, self.record.events)
            self.record.close(plan, self.reporter, standing, interrupted)
            if not is_all_accepted(standing):
                self.final_result = max(self.final_result, FAILURE)


def _without_family(nodes: list[Any]) -> list[Any]:
    """Return the nodes that aren't family groups.

    A task of ours checks by itself what it needs from its family.
    """
    return [node for node in nodes if not node.task.name.startswith(f"{FAMILY}:")]


def _find_plan(task_dispatcher: Any) -> Plan | None:
    for task in task_dispatcher.tasks.values():
        action = action_task(task)
        if action is not None:
            return action.plan
    return None
