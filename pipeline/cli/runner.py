"""doit's runner for our tasks: it gives all that is ready and stale to one joblib run.

doit walks the graph and yields tasks as their dependencies end. Ours are gathered until doit has no
other task to give, and then run together; any other task in the same dodo file is executed at once,
as doit would.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Any

from doit.exceptions import TaskFailed
from doit.runner import FAILURE, Runner

from pipeline.plan.actions import Action, unit_name
from pipeline.plan.plan import Plan
from pipeline.plan.status import Status
from pipeline.report.run_record import Outcome, write_run
from pipeline.report.timeline import Hit, Span
from pipeline.run.batch import Batch, Waiting, Wanted
from pipeline.run.install import install_result
from pipeline.run.steps import Step, step_of
from pipeline.run.worker import Report, log_path
from pipeline.store.digest import Digest
from pipeline.store.errors import ConfigErrors, PipelineError, Problem, told_once
from pipeline.store.files import sweep, temporary
from pipeline.store.maintenance import Usage, add_usage, evict, lease
from pipeline.store.store import MissingBlobError
from pipeline.store.workspace import Workspace

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
        self._lease = contextlib.ExitStack()
        self._held = False
        self.final_result: int
        self.outcomes: list[Outcome] = []
        self._usage: dict[str, Usage] = {}
        self._remote: list[tuple[Any, str]] = []
        self._spans: list[Span] = []
        self._hits: list[Hit] = []
        self._told: dict[Problem, str] = {}

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
        """Whether a package was linked before, so that doit need not look at its methods, or a
        method compiled, so that it need not be quantized."""
        early = step.kind in ("link", "compile")
        if not early or node.run_status is not None or self.always_execute:
            return False
        try:
            status = step.status()
            action = step.action() if status.state == "hit" else None
        except PipelineError:  # told when the task's turn comes
            return False
        if action is None:
            return False
        if step.kind == "compile":
            self._succeed(node, step, "hit", status.reason, action=action)
        elif not self._installed(node, step, status, action):
            return False
        self.reporter.execute_task(node.task)
        return True

    # Running them

    def _run_together(self, nodes: list[Any]) -> None:
        waiting: dict[Digest, Wanted] = {}
        for node in nodes:
            step = step_of(node.task)
            assert step is not None
            self.reporter.execute_task(node.task)
            try:
                status = step.status()
                action = step.action()
            except ConfigErrors as errors:
                lines = told_once(errors.problems, str(step.package), self._told)
                self._fail(node, step, "", Report(error=str(errors)), told="\n".join(lines))
                continue
            except (PipelineError, OSError) as error:
                self._fail(node, step, "", Report(error=_words(error)))
                continue
            if action is None:  # its result is not there and will never be
                self._fail(node, step, "", Report(error=status.reason))
            elif self.always_execute or not self._settled(node, step, status, action):
                wanted = waiting.setdefault(action.digest, Wanted(action, []))
                wanted.tasks.append(Waiting(node, step, status))
        if waiting:
            self._run_in_workers(waiting)

    def _settled(self, node: Any, step: Step, status: Status, action: Action) -> bool:
        """Whether there is nothing to compute for a task."""
        if status.state == "stale":
            return False
        if status.state == "hit" and step.kind in ("link", "validate"):
            return self._installed(node, step, status, action)
        outcome = "hit" if status.state == "hit" else "up-to-date"
        self._succeed(node, step, outcome, status.reason, action=action)
        return True

    def _installed(self, node: Any, step: Step, status: Status, action: Action) -> bool:
        """Puts the files of an action from the store into `build/`, if they are still there."""
        workspace = step.plan.workspace
        self._hold(workspace)
        result = workspace.store.result(action.digest)
        try:
            if result is None:
                return False
            install_result(workspace, action, result)
        except MissingBlobError:
            return False
        except OSError as error:
            self._fail(node, step, status.reason, Report(error=_words(error)))
            return True
        self._succeed(node, step, "hit", status.reason, action=action)
        return True

    def _hold(self, workspace: Workspace) -> None:
        """Keeps others from evicting what this run uses from now on."""
        if not self._held:
            self._held = True
            self._lease.enter_context(lease(workspace.store))

    def _run_in_workers(self, waiting: dict[Digest, Wanted]) -> None:
        """Runs each action once, also where several tasks ask for it, as two packages can ask for
        the same method lowered in the same way."""
        plan = next(iter(waiting.values())).tasks[0].step.plan
        try:
            _check_writable(plan.workspace)
        except OSError as error:
            for task in (task for wanted in waiting.values() for task in wanted.tasks):
                self._fail(task.node, task.step, task.status.reason, Report(error=_words(error)))
            return
        self._hold(plan.workspace)
        if self._pool is None:
            from pipeline.run.pool import Pool  # imports joblib, which a no-op run does without

            jobs = self._jobs or plan.workspace.jobs
            self._pool = Pool(plan.workspace, jobs, self.always_execute)
        batch = Batch(plan, self._pool, getattr(self.reporter, "progress", _quiet), self._count)
        for wanted, report in batch.run(list(waiting.values())):
            first, *others = wanted.tasks
            self._note(first, report, wanted.action)
            for task in others:
                if report.error:
                    self._note(task, report, wanted.action)
                else:
                    self._count(wanted.action.kind, Usage(hits=1, saved=report.seconds))
                    same = f"{task.status.reason}; {wanted.action.title} is the same"
                    self._succeed(task.node, task.step, "hit", same)
        self._remote += batch.remote
        self._spans += batch.spans

    def _note(self, task: Waiting, report: Report, action: Action) -> None:
        if action.kind == "export":
            task.step.plan.forget(action.model)
        if report.error:
            log = log_path(action, task.step.plan.workspace)
            log = log.relative_to(task.step.plan.workspace.root)
            self._fail(task.node, task.step, task.status.reason, report, str(log))
        elif report.done:
            reason = f"{task.status.reason}; another run did it meanwhile"
            self._succeed(task.node, task.step, "hit", reason, report, action)
        else:
            self._count(action.kind, Usage(misses=1, spent=report.seconds))
            self._succeed(task.node, task.step, "built", task.status.reason, report)

    def _count(self, kind: str, usage: Usage) -> None:
        self._usage.setdefault(kind, Usage()).add(usage)

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
        self,
        node: Any,
        step: Step,
        outcome: Any,
        reason: str,
        report: Report | None = None,
        action: Action | None = None,
    ) -> None:
        """`action` is that of a hit, to count what it saved."""
        if action is not None and outcome == "hit":
            entry = step.plan.workspace.store.entry(action.digest)
            self._count(action.kind, Usage(hits=1, saved=entry.seconds if entry else 0.0))
            if report is None:  # no worker had to do with it
                names = (action.kind, action.package, action.method, action.model)
                self._hits.append(Hit(*names, time.time()))
        self._add(step, outcome, reason, report)
        node.run_status = "successful"
        self.reporter.add_success(node.task)

    def _fail(
        self, node: Any, step: Step, reason: str, report: Report, log: str = "", told: str = ""
    ) -> None:
        """`told` is what people are told of the error, where that is not the whole of it."""
        self._add(step, "failed", reason, report)
        self.outcomes[-1] = self.outcomes[-1]._replace(log=log)
        stage = f" in stage '{report.stage}'" if report.stage and log else ""
        hint = f"\n  log: {log}" if log else ""
        node.run_status = "failure"
        failure = TaskFailed(f"{node.task.name} failed{stage}: {told or report.error}{hint}")
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
        self._lease.close()
        steps = [step for task in task_dispatcher.tasks.values() if (step := step_of(task))]
        if not steps or not self.outcomes:
            return
        plan = steps[0].plan
        plan.remember()
        self._keep_house(plan)
        self.outcomes = _complete(plan, self.outcomes)
        remote = self._told_by_remote(plan)
        with contextlib.suppress(OSError):
            write_run(plan.workspace, self.outcomes, remote)
        if hasattr(self.reporter, "summarize"):
            self.reporter.summarize(plan, self.outcomes, remote)
        if any(outcome.outcome != "up-to-date" for outcome in self.outcomes):
            self._tell(plan)

    def _keep_house(self, plan: Plan) -> None:
        """After a run that changed something: counts, leftovers of killed runs, eviction."""
        workspace = plan.workspace
        for kind, usage in plan.models.usage.items():
            self._count(kind, usage)
        if not self._usage:
            return
        add_usage(workspace.store, self._usage)
        for folder in (workspace.build, workspace.build / ".state", workspace.logs):
            sweep(folder)
        if self._pool is not None and workspace.store.cap is not None:
            with contextlib.suppress(OSError):
                evict(workspace.store, workspace.store.cap)

    def _tell(self, plan: Plan) -> None:
        """After a run that did something, what it did when, and the reports over all packages."""
        from pipeline.report.timeline import write_timeline
        from pipeline.report.write import write_overview  # imports templates and charts

        with contextlib.suppress(OSError):
            write_timeline(plan.workspace, self._spans, self._hits)
        if self.final_result == INTERRUPTED:
            return
        try:
            write_overview(plan.workspace, plan.packages)
        except Exception as error:  # a record that was edited, say: the run is what it was
            told = f"{type(error).__name__}: {error}"
            self.reporter.write(f"the reports over all packages could not be written: {told}\n")

    def _told_by_remote(self, plan: Plan) -> dict[str, Any]:
        """What all processes asked of the remote tier, summed, and why it was given up."""
        remote = plan.workspace.store.remote
        if remote is None:
            return {}
        told = [*self._remote, (remote.counts, remote.problem)]
        total = sum((counts for counts, _ in told[1:]), start=told[0][0])
        problems = [problem for _, problem in told if problem]
        return {**vars(total), "problem": problems[0] if problems else ""}


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
    """Adds the methods of packages that were current as a whole, and the quantization of methods
    that were, which doit did not visit."""
    told = {(o.kind, o.package, o.method) for o in outcomes}
    current = [outcome for outcome in outcomes if outcome.outcome in ("up-to-date", "hit")]
    compiles = [
        link._replace(kind="compile", method=unit_name(unit))
        for link in current
        if link.kind == "link"
        for unit in plan.units(str(link.package))
        if ("compile", link.package, unit_name(unit)) not in told
    ]
    quantizes = [
        unit._replace(kind="quantize", method=method, seconds=0.0, peak_bytes=0)
        for unit in [*(outcome for outcome in current if outcome.kind == "compile"), *compiles]
        for method in str(unit.method).split("+")
        if method in plan.quantized(str(unit.package))
        and ("quantize", unit.package, method) not in told
    ]
    return outcomes + quantizes + compiles


@contextlib.contextmanager
def _quiet(queue: Any, steps: Any) -> Any:
    yield lambda action, report: None
