"""Runs our tasks on workers, from ready to settled, while others are running."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.cli.ahead import find_remote_blobs, find_selected_tasks
from pipeline.cli.doit_link import action_task
from pipeline.cli.task_outcomes import TaskOutcomes, describe_failure
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.plan.status import Status
from pipeline.plan.tasks import ActionTask
from pipeline.report.events import Event, make_event
from pipeline.store.digest import Digest
from pipeline.store.errors import (
    PipelineError,
    Problem,
    find_widespread,
    format_new_problems,
    listed,
)
from pipeline.store.files import temporary
from pipeline.store.usage import Usage

if TYPE_CHECKING:  # a no-op run starts no action
    from pipeline.run.batch import Batch


class Waiting(NamedTuple):
    """A task whose action waits or runs; `node` is doit's."""

    node: Any
    task: ActionTask
    status: Status
    action: Action


class WorkerTasks(TaskOutcomes):
    """Gives tasks to workers and settles them. Nodes are doit's."""

    def __init__(self, *arguments: Any, jobs: int, others: Any = None) -> None:
        """Take the arguments of `TaskOutcomes`, and `others`.

        Args:
            others: a feature's handler for other tasks of the dodo file, if there are any.
        """
        super().__init__(*arguments, jobs=jobs)
        self._jobs = jobs
        self._others = others
        self._pool: Any = None
        self._batch: Batch | None = None
        self._selected: list[ActionTask] = []
        self._ready: list[Any] = []  # nodes to be given to workers
        self._under_way: dict[Digest, list[Waiting]] = {}  # given to workers
        self._shown: dict[Problem, str] = {}
        self._widespread: dict[Problem, list[str]] = {}

    def _fetch_ahead(self, tasks: list[ActionTask]) -> None:
        """Fetch the blobs that a remote has for the selected packages, in one go.

        A blob that isn't fetched is missed when its turn comes.
        """
        if self.always_execute:
            return
        blobs = find_remote_blobs(tasks)
        if blobs:
            workspace = tasks[0].plan.workspace
            self._hold(workspace)
            workspace.store.fetch(blobs)

    def _give_to_workers(self) -> list[Any]:
        """Give ready and stale tasks to workers, and return the nodes of those that are settled."""
        if self._others is not None and self._others.needs_new_workers():
            self._close_pool()
        self._widespread = find_widespread(_find_problems(self._ready))
        digest_to_waiting: dict[Digest, list[Waiting]] = {}
        settled = []
        for node in self._ready:
            waiting = self._prepare(node)
            if waiting is not None:
                digest_to_waiting.setdefault(waiting.action.digest, []).append(waiting)
            elif node.run_status is not None:
                settled.append(node)
        self._ready.clear()
        if digest_to_waiting:
            settled += self._start(digest_to_waiting)
        return settled

    def _finish_what_runs(self, dispatcher: Any) -> list[Any]:
        """Wait for all running actions, and return the nodes of the tasks that are settled."""
        settled = []
        while self._under_way:
            settled += self._wait_for_workers(dispatcher)
        self._close_batch()
        return settled

    def _prepare(self, node: Any) -> Waiting | None:
        """Return a task with its action, or None if it needs no worker or can't run."""
        task = action_task(node.task)
        assert task is not None
        self.reporter.execute_task(node.task)
        try:
            status = task.status()
            action = task.action(self.always_execute)
        except (PipelineError, OSError) as error:
            problems = getattr(error, "problems", ())  # of ConfigErrors
            lines = format_new_problems(
                problems, str(task.package), self._shown, self._widespread
            )
            shown = "\n".join(lines) if problems else None
            self._fail(node, describe_failure(task, error), shown)
            return None
        if action is None:  # its result can no longer be produced
            if self._others is not None and self._others.export_again(node, task):
                return None
            self._fail(node, make_event(task, "failed", error=status.reason))
            return None
        if not self.always_execute and self._settle(node, task, status, action):
            return None
        stream = self.record.stream(task.plan.workspace)
        stream.write("action-queued", task, action=action.digest, reason=status.reason)
        return Waiting(node, task, status, action)

    def _start(self, digest_to_waiting: dict[Digest, list[Waiting]]) -> list[Any]:
        """Give each action to workers once, even if several tasks need it.

        For example, two packages may lower the same method in the same way. Returns the nodes of
        the tasks that failed at once.
        """
        plan = next(iter(digest_to_waiting.values()))[0].task.plan
        try:
            _try_to_write(plan)
        except OSError as error:
            failed = []
            for waiting_tasks in digest_to_waiting.values():
                for node, task, status, _ in waiting_tasks:
                    self._fail(node, describe_failure(task, error, status.reason))
                    failed.append(node)
            return failed
        self._hold(plan.workspace)
        actions = []
        for digest, waiting_tasks in digest_to_waiting.items():
            if digest not in self._under_way:
                actions.append(waiting_tasks[0].action)
            self._under_way.setdefault(digest, []).extend(waiting_tasks)
        self._open_batch(plan).add(actions)
        return []

    def _drop_waiting(self) -> None:
        """Put tasks whose actions no worker has started back among the ready ones."""
        for action in self._batch.drop_waiting() if self._batch else ():
            for waiting in self._under_way.pop(action.digest):
                self._ready.append(waiting.node)

    def _wait_for_workers(self, task_dispatcher: Any) -> list[Any]:
        """Wait until actions end, and return the nodes of the tasks that are settled."""
        assert self._batch is not None
        settled = []
        exported = set()
        for action, event in self._batch.next_ended():
            for number, waiting in enumerate(self._under_way.pop(action.digest)):
                self._settle_built(waiting, event, first=number == 0)
                if waiting.node.run_status is not None:
                    settled.append(waiting.node)
            if action.kind == "export":
                exported.add(action.model)
        if exported:  # only now are the next actions known
            tasks = find_selected_tasks(task_dispatcher)
            self._fetch_ahead([task for task in tasks if _export_of(task) in exported])
        return settled

    def _open_batch(self, plan: Plan) -> Batch:
        from pipeline.run.batch import Batch

        if self._batch is None:
            self._open_pool(plan)
            quiet = contextlib.nullcontext(lambda event: None)
            progress = getattr(self.reporter, "progress", lambda *_: quiet)
            self._batch = Batch(plan, self._pool, progress, self.record.reports)
        return self._batch

    def _close_batch(self) -> None:
        if self._batch is not None:
            self._batch.close()
            self._batch = None

    def _open_pool(self, plan: Plan) -> None:
        if self._pool is None:
            from pipeline.run.pool import Pool  # not needed by a no-op run

            jobs = self._jobs or plan.workspace.jobs
            self._pool = Pool(plan.workspace, jobs, self.always_execute)
            self._pool.tell(self.record.stream(plan.workspace))
            self._pool.selected, self._pool.events = self._selected, self.record.events
            self._pool.use_idle_core(_prepare_reports)

    def _close_pool(self) -> None:
        self._close_batch()
        if self._pool is not None:
            self.record.idle_seconds += self._pool.idle_seconds
            self._pool.close()
            self._pool = None

    def _settle_built(self, waiting: Waiting, event: Event, first: bool) -> None:
        """Settle a task whose action ended; all tasks that share it but the first are hits."""
        node, task, status, action = waiting
        task_event = make_event(task, event.outcome, reason=status.reason)
        if action.kind == "export" and not event.error:
            task.plan.note_export(action)
            self._warn_of_export(task)
        makers = self._others.exports_again(node) if self._others is not None else ()
        if makers:
            self._warn(
                f"{task.model}: reads files that {listed(makers)} makes; exported again"
            )
            if not event.error:
                self._note(task, task_event)
            return
        if event.error:
            names = ("seconds", "peak_bytes", "stage", "error", "log", "host")
            facts = {name: getattr(event, name) for name in names}
            self._fail(node, task_event._replace(**facts))
        elif not first:
            self.record.count(action.kind, Usage(hits=1, saved=event.seconds))
            reason = f"{status.reason}; {event.title} is the same"
            self._succeed(node, task_event._replace(outcome="hit", reason=reason))
        else:
            reason = status.reason
            if event.outcome == "hit":
                self._count_hit(task.plan.workspace, action)
                reason += "; another run did it in the meantime"
            facts = {
                name: getattr(event, name) for name in ("seconds", "peak_bytes", "host")
            }
            self._succeed(node, task_event._replace(reason=reason, **facts))

    def _warn_of_export(self, task: ActionTask) -> None:
        """Print warnings about exported methods at once, before they are compiled."""
        action = task.action()  # its key now includes the inputs that the exporter read
        entry = task.plan.workspace.store.get(action.digest) if action else None
        for warning in entry.result["warnings"] if entry is not None else ():
            self._warn(f"{task.model}: {warning}")

    def _warn(self, warning: str) -> None:
        """Print a warning at once, if doit's reporter is ours."""
        if hasattr(self.reporter, "warn"):
            self.reporter.warn(warning)


def _export_of(task: ActionTask) -> str | None:
    """Return the name of the export that a package is made from, or None."""
    return task.plan.exporter(task.package) if task.package else None


def _find_problems(nodes: Sequence[Any]) -> dict[str, Sequence[Problem]]:
    """Return the problems of the packages of our tasks, by package."""
    package_to_problems: dict[str, Sequence[Problem]] = {}
    for node in nodes:
        task = action_task(node.task)
        if task is not None and task.package:
            # Shown when its turn comes.
            with contextlib.suppress(PipelineError, OSError):
                package_to_problems[task.package] = task.plan.problems(task.package)
    return package_to_problems


def _try_to_write(plan: Plan) -> None:
    """Fail now rather than after minutes of compiling. Raises OSError."""
    with temporary(plan.workspace.logs, plan.workspace.build):
        pass
    with plan.workspace.store.scratch():
        pass


def _prepare_reports() -> None:
    """Import the report modules and compile their templates while workers are busy.

    This saves a tenth of a second at the end of the run.
    """
    with contextlib.suppress(Exception):  # errors recur when reports are written
        from pipeline.report.render import render_all

        render_all(())
