"""doit's runner for our tasks: it gives all that is ready and stale to one joblib run.

doit walks the graph and yields tasks as their dependencies end. Ours are gathered until doit has no
other task to give, and then run together; any other task in the same dodo file is executed at once,
as doit would.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from typing import Any

from doit import cmd_info, cmd_run
from doit.exceptions import TaskFailed
from doit.runner import FAILURE, Runner

from pipeline.actions import Action, unit_name
from pipeline.errors import PipelineError
from pipeline.package import install
from pipeline.plan import Plan, Status
from pipeline.records import Outcome, write_run
from pipeline.steps import Step, UpToDate, step_of
from pipeline.worker import Report, log_path

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
        self.outcomes: list[Outcome] = []

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
                    done.extend(self._run_together(ready))
                    ready = []
                elif node != "hold on":
                    self._take(node, task_dispatcher.tasks, ready, done)
        finally:
            self._close(task_dispatcher)

    def _take(self, node: Any, tasks: Any, ready: list[Any], done: deque[Any]) -> None:
        """Gathers a task of ours that is stale; settles any other task now."""
        step = step_of(node.task)
        if node.bad_deps and (step is not None or not node.task.actions):
            self._not_run(node, step)
            done.append(node)
        elif not self.select_task(node, tasks):
            if step is not None and node.run_status == "up-to-date":
                self._add(step.outcome("up-to-date", "unchanged"))
            done.append(node)
        elif step is not None:
            ready.append(node)
        else:
            self.process_task_result(node, self.execute_task(node.task))
            done.append(node)

    def _run_together(self, nodes: list[Any]) -> list[Any]:
        waiting: dict[int, tuple[Any, Step, Status]] = {}
        queue: list[Action] = []
        for node in nodes:
            step = step_of(node.task)
            assert step is not None
            try:
                status = step.status()
                action = step.action()
                if action is None:
                    raise PipelineError(status.reason)
                if self.always_execute or status.state == "stale":
                    waiting[id(action)] = (node, step, status)
                    queue.append(action)
                else:
                    self._settle(node, step, status, action)
            except (PipelineError, OSError) as error:
                self._fail(node, step, str(error), Report(error=str(error)), "")
        if queue:
            self._run_in_workers(queue, waiting)
        return nodes

    def _settle(self, node: Any, step: Step, status: Status, action: Action) -> None:
        """An action whose result is there already: a package comes from the store."""
        if status.state == "hit" and step.kind in ("link", "validate"):
            result = step.plan.workspace.store.result(action.digest)
            assert result is not None
            install(step.plan.workspace, action, result["files"], **result.get("facts", {}))
        outcome = "hit" if status.state == "hit" else "up-to-date"
        self._succeed(node, step.outcome(outcome, status.reason))

    def _run_in_workers(
        self, queue: list[Action], waiting: Mapping[int, tuple[Any, Step, Status]]
    ) -> None:
        step = next(iter(waiting.values()))[1]
        if self._pool is None:
            from pipeline.pool import Pool

            self._pool = Pool(step.plan.workspace, self._jobs or step.plan.workspace.jobs)
        with self.reporter.progress(queue) if hasattr(self.reporter, "progress") else _quiet() as tell:
            for action, report in self._pool.run(queue):
                node, step, status = waiting[id(action)]
                tell(action, report)
                if action.kind == "export":
                    step.plan.forget(action.model)
                if report.error:
                    log = log_path(action, step.plan.workspace)
                    self._fail(node, step, status.reason, report, str(log))
                else:
                    self._succeed(
                        node,
                        step.outcome(
                            "built",
                            status.reason,
                            seconds=round(report.seconds, 3),
                            peak_bytes=report.peak_bytes,
                        ),
                    )

    # What came of it

    def _succeed(self, node: Any, outcome: Outcome) -> None:
        node.run_status = "successful"
        self._add(outcome)
        self.reporter.add_success(node.task)

    def _fail(self, node: Any, step: Step, reason: str, report: Report, log: str) -> None:
        self._add(
            step.outcome(
                "failed",
                reason,
                seconds=round(report.seconds, 3),
                peak_bytes=report.peak_bytes,
                error=report.error,
                log=log,
            )
        )
        stage = f" in stage '{report.stage}'" if report.stage else ""
        hint = f"\n  log: {log}" if log else ""
        failure = TaskFailed(f"{node.task.name} failed{stage}: {report.error}{hint}")
        node.run_status = "failure"
        self.reporter.add_failure(node.task, failure)
        self._failed()

    def _not_run(self, node: Any, step: Step | None) -> None:
        """A task of ours, or a group of tasks, of which some other task failed."""
        node.run_status = "failure"
        if step is not None:
            failed = ", ".join(bad.task.name for bad in node.bad_deps)
            self._add(step.outcome("not-run", f"{failed} failed"))
        self._failed()

    def _failed(self) -> None:
        self.final_result = max(self.final_result, FAILURE)
        if not self.continue_:
            self._stop_running = True

    def _add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

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


def _complete(plan: Plan, outcomes: list[Outcome]) -> list[Outcome]:
    """Adds the methods of packages that were current as a whole, which doit did not visit."""
    told = {(o.kind, o.package, o.method) for o in outcomes}
    current = [o for o in outcomes if o.kind == "link" and o.outcome in ("up-to-date", "hit")]
    more = [
        Outcome("compile", link.package, unit_name(unit), link.outcome, link.reason, model=link.model)
        for link in current
        for unit in plan.units(str(link.package))
        if ("compile", link.package, unit_name(unit)) not in told
    ]
    return outcomes + more


@contextlib.contextmanager
def _quiet() -> Any:
    yield lambda action, report: None


def install_into_doit() -> None:
    """Gives doit our runner, and our reasons in `doit info`, for this process.

    doit lets a dodo file choose its reporter but not its runner, and a `run` command registered as
    a plugin would replace that of every doit project beside which this package is installed. So the
    dodo file's import does it; it can go when DOIT_CONFIG takes a runner.
    """
    for name in ("Runner", "MRunner", "MThreadRunner"):
        setattr(cmd_run, name, BatchRunner)
    BatchRunner.available = staticmethod(lambda: True)  # type: ignore[attr-defined]
    original = cmd_info.Info.get_reasons
    if getattr(original, "ours", False):
        return

    def get_reasons(reasons: Any) -> str:
        ours = [str(entry[0]) for entry in reasons["uptodate_false"] if isinstance(entry[0], UpToDate)]
        if not ours:
            return original(reasons)
        return "\n".join(f" * {line}" for reason in ours for line in reason.splitlines())

    get_reasons.ours = True  # type: ignore[attr-defined]
    cmd_info.Info.get_reasons = staticmethod(get_reasons)
