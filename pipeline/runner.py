"""doit's runner for our tasks: it gives all that is ready and stale to one joblib run.

doit walks the graph and yields tasks as their dependencies end. Ours are gathered until doit has no
other task to give, and then run together; any other task in the same dodo file is executed at once,
as doit would.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from doit.exceptions import TaskFailed
from doit.runner import FAILURE, Runner

from pipeline.actions import Action, unit_name
from pipeline.digest import Digest
from pipeline.errors import PipelineError
from pipeline.files import temporary
from pipeline.package import install
from pipeline.plan import Plan, Status
from pipeline.records import Outcome, write_run
from pipeline.steps import Step, step_of
from pipeline.store import MissingBlobError
from pipeline.worker import Report, log_path
from pipeline.workspace import Workspace

INTERRUPTED = 130  # what shells give for SIGINT


class BatchRunner(Runner):
    """Takes the place of all of doit's runners; `doit -n N` sets the number of workers."""

    def __init__(
        self,
        dep_manager: Any,
        reporter: Any,
        continue_: bool = False,
        always_execute: bool = False,
        stream: Any = None,
        num_process: int = 0,
    ) -> None:
        super().__init__(dep_manager, reporter, continue_, always_execute, stream)
        self._jobs = num_process
        self._pool: Any = None
        self.final_result: int
        self.outcomes: list[Outcome] = []

    # Which tasks run when

    def run_tasks(self, task_dispatcher: Any) -> None:
        done: deque[Any] = deque()
        ready: list[Any] = []
        try:
            while not self._stop_running:
                try:
                    node = task_dispatcher.generator.send(done.popleft() if done else None)
                except StopIteration:
                    node = None
                if node is None or (node == "hold on" and not done):
                    if not ready:
                        break
                    self._run_together(ready)
                    done.extend(ready)
                    ready = []
                elif node != "hold on":
                    self._take(node, task_dispatcher.tasks, ready, done)
        except KeyboardInterrupt:
            self.final_result = INTERRUPTED
            for node in ready:
                if node.run_status == "run":
                    self._not_run(node, "interrupted")
        finally:
            self._close(task_dispatcher)

    def _take(self, node: Any, tasks: Any, ready: list[Any], done: deque[Any]) -> None:
        """Gathers a task of ours that is stale; settles any other task now."""
        step = step_of(node.task)
        if node.bad_deps and (step is not None or not node.task.actions):
            self._not_run(node, ", ".join(bad.task.name for bad in node.bad_deps) + " failed")
            self._failed()
        elif step is not None and self._comes_from_store(node, step):
            pass
        elif not self.select_task(node, tasks):
            if step is not None and node.run_status == "up-to-date":
                self._add(step, "up-to-date", "unchanged")
        elif step is not None:
            ready.append(node)
            return
        else:
            self.process_task_result(node, self.execute_task(node.task))
        done.append(node)

    def _comes_from_store(self, node: Any, step: Step) -> bool:
        """Whether a package was linked before, so that doit need not look at its methods."""
        if step.kind != "link" or node.run_status is not None or self.always_execute:
            return False
        try:
            status = step.status()
            if status.state != "hit":
                return False
            self._install(step, step.action())
        except MissingBlobError:  # dropped just now: the package is linked again
            return False
        except PipelineError:  # told when the task's turn comes
            return False
        self.reporter.execute_task(node.task)
        self._succeed(node, step, "hit", status.reason)
        return True

    # Running them

    def _run_together(self, nodes: list[Any]) -> None:
        waiting: dict[Digest, list[tuple[Any, Step, Status]]] = {}
        queue: list[Action] = []
        for node in nodes:
            step = step_of(node.task)
            assert step is not None
            self.reporter.execute_task(node.task)
            try:
                status = step.status()
                action = step.action()
            except (PipelineError, OSError) as error:
                self._fail(node, step, "", Report(error=_words(error)))
                continue
            if action is not None and (self.always_execute or status.state == "stale"):
                if action.digest not in waiting:
                    queue.append(action)
                waiting.setdefault(action.digest, []).append((node, step, status))
            else:
                self._settle(node, step, status, action)
        if queue:
            self._run_in_workers(queue, waiting)

    def _settle(self, node: Any, step: Step, status: Status, action: Action | None) -> None:
        """A task with nothing to compute: its result is there, or will never be."""
        if action is None:
            self._fail(node, step, "", Report(error=status.reason))
            return
        try:
            if status.state == "hit" and step.kind in ("link", "validate"):
                self._install(step, action)
        except (PipelineError, OSError) as error:
            self._fail(node, step, status.reason, Report(error=_words(error)))
            return
        outcome = "hit" if status.state == "hit" else "up-to-date"
        self._succeed(node, step, outcome, status.reason)

    def _install(self, step: Step, action: Any) -> None:
        """Puts the files of an action from the store into `build/`."""
        workspace = step.plan.workspace
        result = workspace.store.result(action.digest)
        if result is None:
            raise MissingBlobError(f"the result of {action.title} left the store; run again")
        install(workspace, action, result["files"], **result.get("facts", {}))

    def _run_in_workers(
        self, queue: list[Action], waiting: Mapping[Digest, list[tuple[Any, Step, Status]]]
    ) -> None:
        """Runs each action once, also where several tasks ask for it, as two packages can ask for
        the same method lowered in the same way."""
        workspace = waiting[queue[0].digest][0][1].plan.workspace
        try:
            _check_writable(workspace)
        except OSError as error:
            for node, step, status in (task for tasks in waiting.values() for task in tasks):
                self._fail(node, step, status.reason, Report(error=_words(error)))
            return
        if self._pool is None:
            from pipeline.pool import Pool  # imports joblib, which a no-op run does without

            self._pool = Pool(workspace, self._jobs or workspace.jobs)
        progress = getattr(self.reporter, "progress", _quiet)
        with progress(queue) as tell:
            for action, report in self._pool.run(queue):
                tell(action, report)
                first, *others = waiting[action.digest]
                self._note(*first, report, action)
                for node, step, status in others:
                    if report.error:
                        self._note(node, step, status, report, action)
                    else:
                        same = f"{status.reason}; {action.title} is the same"
                        self._succeed(node, step, "hit", same)

    def _note(self, node: Any, step: Step, status: Status, report: Report, action: Action) -> None:
        if action.kind == "export":
            step.plan.forget(action.model)
        if report.error:
            log = log_path(action, step.plan.workspace).relative_to(step.plan.workspace.root)
            self._fail(node, step, status.reason, report, str(log))
        else:
            self._succeed(node, step, "built", status.reason, report)

    # What came of them

    def _add(self, step: Step, outcome: Any, reason: str, report: Report | None = None) -> None:
        report = report or Report()
        self.outcomes.append(
            Outcome(
                kind=step.kind,
                package=step.package,
                method=unit_name(step.unit) or None,
                outcome=outcome,
                reason=reason,
                seconds=round(report.seconds, 3),
                peak_bytes=report.peak_bytes,
                model=step.model or "",
                error=report.error,
            )
        )

    def _succeed(
        self, node: Any, step: Step, outcome: Any, reason: str, report: Report | None = None
    ) -> None:
        self._add(step, outcome, reason, report)
        node.run_status = "successful"
        self.reporter.add_success(node.task)

    def _fail(self, node: Any, step: Step, reason: str, report: Report, log: str = "") -> None:
        self._add(step, "failed", reason, report)
        self.outcomes[-1] = replace(self.outcomes[-1], log=log)
        stage = f" in stage '{report.stage}'" if report.stage and log else ""
        hint = f"\n  log: {log}" if log else ""
        node.run_status = "failure"
        failure = TaskFailed(f"{node.task.name} failed{stage}: {report.error}{hint}")
        self.reporter.add_failure(node.task, failure)
        self._failed()

    def _not_run(self, node: Any, reason: str) -> None:
        """A task of ours, or a group of tasks, that can't or shan't run."""
        step = step_of(node.task)
        node.run_status = "failure"
        if step is not None:
            self._add(step, "not-run", reason)

    def _failed(self) -> None:
        self.final_result = max(self.final_result, FAILURE)
        if not self.continue_:
            self._stop_running = True

    def _close(self, task_dispatcher: Any) -> None:
        if self._pool is not None:
            self._pool.close()
        steps = [step for task in task_dispatcher.tasks.values() if (step := step_of(task))]
        if not steps or not self.outcomes:
            return
        plan = steps[0].plan
        plan.workspace.file_digests.save()
        self.outcomes = _complete(plan, self.outcomes)
        with contextlib.suppress(OSError):
            write_run(plan.workspace, self.outcomes)
        if hasattr(self.reporter, "summarize"):
            self.reporter.summarize(plan, self.outcomes)


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return str(error)


def _check_writable(workspace: Workspace) -> None:
    """Raises OSError now rather than after minutes of compiling."""
    for folder in (workspace.logs, workspace.store.root):
        with temporary(folder):
            pass


def _complete(plan: Plan, outcomes: list[Outcome]) -> list[Outcome]:
    """Adds the methods of packages that were current as a whole, which doit did not visit."""
    told = {(o.kind, o.package, o.method) for o in outcomes}
    more = [
        replace(link, kind="compile", method=unit_name(unit))
        for link in outcomes
        if link.kind == "link" and link.outcome in ("up-to-date", "hit")
        for unit in plan.units(str(link.package))
        if ("compile", link.package, unit_name(unit)) not in told
    ]
    return outcomes + more


@contextlib.contextmanager
def _quiet(queue: Any) -> Any:
    yield lambda action, report: None
