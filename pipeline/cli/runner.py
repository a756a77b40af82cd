"""doit's runner for our tasks: it gives all that is ready and stale to one pool.

doit walks the graph and yields tasks as their dependencies end. Ours are gathered until doit has no
other task to give, and then run together; any other task in the same dodo file is executed at once,
as doit would.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Any, NamedTuple

from doit.exceptions import InvalidCommand, TaskFailed
from doit.runner import FAILURE, Runner

from pipeline.cli.doit_link import action_task, is_foreign, up_to_date
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.run_options import RunOptions
from pipeline.cli.run_record import RunRecord
from pipeline.cli.standing import find_standing, is_all_accepted
from pipeline.cli.terminal import as_it_is
from pipeline.cli.toolchain_check import check_toolchain
from pipeline.plan.actions import Action
from pipeline.plan.status import Status
from pipeline.plan.tasks import ActionTask
from pipeline.plan.waves import ask_for_packages
from pipeline.report.events import INTERRUPTED, Event, make_event
from pipeline.run.batch import Batch
from pipeline.run.stored import install_stored
from pipeline.store.digest import Digest
from pipeline.store.errors import ConfigErrors, PipelineError, Problem, format_new_problems
from pipeline.store.files import temporary
from pipeline.store.maintenance import lease
from pipeline.store.usage import Usage
from pipeline.store.visible import one_line
from pipeline.store.workspace import Workspace

FAMILY = "_family"  # the group of tasks of each family


def start_ahead(workspace: Workspace, workers: int, always: bool) -> None:
    """Start workers while it is planned what to do, where it is sure that there is something: where
    nothing was built before, neither here nor with this store."""
    was_built = workspace.store.has_results() or workspace.has_states()
    if not workspace.executor and (always or not was_built):
        from pipeline.run.executors import local

        local.start_ahead(workspace, workers)


class Waiting(NamedTuple):
    """A task that waits for its action; `node` is doit's."""

    node: Any
    task: ActionTask
    status: Status
    action: Action


class BatchRunner(Runner):
    """Runs tasks instead of any of doit's runners."""

    def __init__(
        self,
        dep_manager: Any,
        reporter: Any,
        continue_: bool,
        always_execute: bool,
        stream: Any,
        jobs: int,
        options: RunOptions,
    ) -> None:
        """Take doit's arguments for a runner, the number of processes of `doit -n`, and the options
        that stood behind the names of tasks."""
        super().__init__(dep_manager, reporter, continue_, always_execute, stream)
        # `doit -v 2` is doit's own way to say it.
        is_verbose = options.verbose or (stream.force_global and stream.verbosity > 1)
        self.reporter.verbose = is_verbose
        self.reporter.methods_of = options.methods_of
        self._jobs: int = options.jobs or jobs
        self.always_execute: bool = always_execute or options.always
        self._pool: Any = None
        self._lease = contextlib.ExitStack()
        self._held = False
        self.final_result: int
        self.record = RunRecord(self._jobs)
        self._shown: dict[Problem, str] = {}

    # Which tasks run when

    def run_tasks(self, task_dispatcher: Any) -> None:
        ready: list[Any] = []
        with Interrupts() as interrupts:
            try:
                try:
                    asked = _selected_tasks(task_dispatcher)
                    _check_toolchain(asked)
                    self._prepare_workers(asked)
                    self._fetch_ahead(asked)
                    self._walk(task_dispatcher, ready)
                finally:
                    interrupts.hold()
            except KeyboardInterrupt:
                for node in ready:
                    if node.run_status == "run":
                        self._not_run(node, INTERRUPTED)
            finally:
                self._close(task_dispatcher, bool(interrupts.status))
                self.final_result = interrupts.status or self.final_result

    def _prepare_workers(self, asked: list[ActionTask]) -> None:
        """Start the workers that the selected packages need, if it is sure that they need some."""
        if not asked:
            return
        plan = asked[0].plan
        units = 0
        for package in {task.package for task in asked if task.package}:
            summary = plan.configs.summary(package)
            units += len(summary.units) if summary is not None else 0
        workers = min(self._jobs or plan.workspace.jobs, units)
        start_ahead(plan.workspace, workers, self.always_execute)

    def _fetch_ahead(self, asked: list[ActionTask]) -> None:
        """Fetch what a remote has for the selected packages, together. What does not come is found
        missing when its turn comes."""
        packages = sorted({task.package for task in asked if task.package})
        if not asked or self.always_execute or asked[0].plan.workspace.store.remote is None:
            return
        plan = asked[0].plan
        sound = [package for package in packages if not plan.problems(package)]
        validates = any(task.kind == "validate" for task in asked)
        blobs = ask_for_packages(plan, sound, validates)
        if blobs:
            self._hold(plan.workspace)
            plan.workspace.store.fetch(blobs)

    def _walk(self, task_dispatcher: Any, ready: list[Any]) -> None:
        """Walk the graph to its end. `ready` holds those that wait for workers, or are there."""
        done: deque[Any] = deque()
        while not self._stop_running:
            try:
                node = task_dispatcher.generator.send(done.popleft() if done else None)
            except StopIteration:
                node = None
            if node is None or (node == "hold on" and not done):
                if not ready:
                    break
                self._run_together(ready)
                if any(each.task.name.startswith("export:") for each in ready):
                    # now it is known what follows
                    self._fetch_ahead(_selected_tasks(task_dispatcher))
                done.extend(ready)
                ready.clear()
            elif node != "hold on":
                self._take(node, task_dispatcher.tasks, ready, done)

    def _take(self, node: Any, tasks: Any, ready: list[Any], done: deque[Any]) -> None:
        """Gather a task of ours that is stale; settle any other task now."""
        task = action_task(node.task)
        if task is not None:  # what it needs of its family it says itself
            node.bad_deps = [e for e in node.bad_deps if not e.task.name.startswith(f"{FAMILY}:")]
        if node.bad_deps and (task is not None or not node.task.actions):
            self._not_run(node, ", ".join(bad.task.name for bad in node.bad_deps) + " failed")
            self._failed()
        elif task is not None and self._comes_from_store(node, task):
            pass
        elif not self.select_task(node, tasks):
            if task is not None and node.run_status == "up-to-date":
                self._note(task, make_event(task, "up-to-date", reason="unchanged"))
        elif task is not None:
            ready.append(node)
            return
        else:
            with as_it_is() if is_foreign(node.task) else contextlib.nullcontext():
                self.process_task_result(node, self.execute_task(node.task))
        done.append(node)

    def select_task(self, node: Any, tasks: Any) -> Any:
        """Make the tasks of the methods of a package that is stale, and let doit look at it."""
        check = up_to_date(node.task)
        if check is not None and check.setup is not None and node.run_status is None:
            if self.always_execute or not check.is_current():
                made = {each.name: each for each in check.setup()}
                for name, each in made.items():  # it may stand there for another of a family
                    tasks.setdefault(name, each)
                node.task.setup_tasks += [name for name in made if name.startswith("compile:")]
            check.setup = None
        return super().select_task(node, tasks)

    def _comes_from_store(self, node: Any, task: ActionTask) -> bool:
        """Return whether a package was linked before, so that doit need not look at its methods, or
        a method compiled, so that it need not be quantized."""
        if not task.traits.subsumes or node.run_status is not None or self.always_execute:
            return False
        check = up_to_date(node.task)
        assert check is not None
        try:
            status = check.status()
            action = task.action() if status.state == "hit" else None
        except PipelineError:  # shown when the task's turn comes
            return False
        if action is None or not self._settle(node, task, status, action):
            return False
        self.record.count_spared(task.plan.workspace.store, action)
        self.reporter.execute_task(node.task)
        return True

    # Running them

    def _run_together(self, nodes: list[Any]) -> None:
        waiting: dict[Digest, list[Waiting]] = {}
        for node in nodes:
            task = action_task(node.task)
            assert task is not None
            self.reporter.execute_task(node.task)
            try:
                status, action = task.status(), task.action(self.always_execute)
            except (PipelineError, OSError) as error:
                problems = error.problems if isinstance(error, ConfigErrors) else ()
                lines = format_new_problems(problems, str(task.package), self._shown)
                self._fail(node, _failure(task, error), "\n".join(lines))
                continue
            if action is None:  # its result is not there and will never be
                self._fail(node, make_event(task, "failed", error=status.reason))
            elif self.always_execute or not self._settle(node, task, status, action):
                self.record.stream(task.plan.workspace).write(
                    "action-queued", task, action=action.digest, reason=status.reason
                )
                waiting.setdefault(action.digest, []).append(Waiting(node, task, status, action))
        if waiting:
            self._run_in_workers(waiting)

    def _settle(self, node: Any, task: ActionTask, status: Status, action: Action) -> bool:
        """Settle a task for which there is nothing to compute; False for any other."""
        if status.state == "stale":
            return False
        if status.state != "hit":
            event = make_event(task, "up-to-date", reason=status.reason)
        else:
            workspace = task.plan.workspace
            try:
                if task.traits.installed:
                    self._hold(workspace)
                    if not install_stored(workspace, action):
                        return False
            except OSError as error:
                self._fail(node, _failure(task, error, status.reason))
                return True
            self._count_hit(workspace, action)
            event = make_event(task, "hit", reason=status.reason, start=time.time())
        self._succeed(node, event)
        return True

    def _hold(self, workspace: Workspace) -> None:
        """Keep others from evicting what this run uses from now on."""
        if not self._held:
            self._held = True
            self._lease.enter_context(lease(workspace.store))

    def _run_in_workers(self, waiting: dict[Digest, list[Waiting]]) -> None:
        """Run each action once, also where several tasks ask for it, as two packages can ask for
        the same method lowered in the same way."""
        actions = [tasks[0].action for tasks in waiting.values()]
        plan = next(iter(waiting.values()))[0].task.plan
        try:
            logs, store = plan.workspace.logs, plan.workspace.store.root
            for folder, root in ((logs, plan.workspace.build), (store, store)):
                with temporary(folder, root):  # fails now rather than after minutes of compiling
                    pass
        except OSError as error:
            for each in (each for tasks in waiting.values() for each in tasks):
                self._fail(each.node, _failure(each.task, error, each.status.reason))
            return
        self._hold(plan.workspace)
        if self._pool is None:
            from pipeline.run.pool import Pool  # which a no-op run does without

            jobs = self._jobs or plan.workspace.jobs
            self._pool = Pool(plan.workspace, jobs, self.always_execute)
            self._pool.tell(self.record.stream(plan.workspace))
            self._pool.use_idle_core(_prepare_reports)
        quiet = contextlib.nullcontext(lambda event: None)
        progress = getattr(self.reporter, "progress", lambda *_: quiet)
        batch = Batch(plan, self._pool, progress, self.record.reports)
        for action, event in batch.run(actions):
            for number, each in enumerate(waiting[action.digest]):
                self._settle_built(each, event, first=number == 0)

    def _settle_built(self, waiting: Waiting, event: Event, first: bool) -> None:
        """Settle a task whose action ended; all but the first of an action are hits."""
        node, task, status, action = waiting
        own = make_event(task, event.outcome, reason=status.reason)
        if action.kind == "export" and not event.error:
            task.plan.note_export(action)
            self._warn_of_export(task)
        if event.error:
            copied = ("seconds", "peak_bytes", "stage", "error", "log", "host")
            self._fail(node, own._replace(**{name: getattr(event, name) for name in copied}))
        elif not first:
            self.record.count(action.kind, Usage(hits=1, saved=event.seconds))
            reason = f"{status.reason}; {event.title} is the same"
            self._succeed(node, own._replace(outcome="hit", reason=reason))
        else:
            own = own._replace(seconds=event.seconds, peak_bytes=event.peak_bytes, host=event.host)
            if event.outcome == "hit":
                self._count_hit(task.plan.workspace, action)
                own = own._replace(reason=f"{status.reason}; another run did it meanwhile")
            self._succeed(node, own)

    def _warn_of_export(self, task: ActionTask) -> None:
        """Say at once what is wrong with exported methods, before they are compiled."""
        action = task.action()  # whose key holds what the exporter turned out to read
        entry = task.plan.workspace.store.get(action.digest) if action else None
        warn = getattr(self.reporter, "warn", None)
        if entry is not None and warn is not None:
            for warning in entry.result["warnings"]:
                warn(f"{task.model}: {warning}")

    # What came of them

    def _count_hit(self, workspace: Workspace, action: Action) -> None:
        entry = workspace.store.get(action.digest)
        self.record.count(action.kind, Usage(hits=1, saved=entry.seconds if entry else 0.0))

    def _note(self, task: ActionTask | None, event: Event) -> None:
        assert task is not None
        self.record.add(task.plan.workspace, event)

    def _succeed(self, node: Any, event: Event) -> None:
        self._note(action_task(node.task), event)
        node.run_status = "successful"
        self.reporter.add_success(node.task)

    def _fail(self, node: Any, event: Event, shown: str = "") -> None:
        """`shown` is what people see of the error, where that is not the whole of it."""
        self._note(action_task(node.task), event)
        stage = f" in stage '{event.stage}'" if event.stage and event.log else ""
        stage += f" on {one_line(event.host)}" if event.host else ""
        hint = f"\n  log: {one_line(event.log)}" if event.log else ""
        node.run_status = "failure"
        failure = TaskFailed(f"{node.task.name} failed{stage}: {shown or event.error}{hint}")
        self.reporter.add_failure(node.task, failure)
        self._failed()

    def _not_run(self, node: Any, reason: str) -> None:
        """Settle a task of ours, or a group of tasks, that can't or shan't run."""
        task = action_task(node.task)
        node.run_status = "failure"
        if task is not None:
            self._note(task, make_event(task, "not-run", reason=reason))

    def _failed(self) -> None:
        self.final_result = max(self.final_result, FAILURE)
        if not self.continue_:
            self._stop_running = True

    def _close(self, task_dispatcher: Any, interrupted: bool) -> None:
        if self._pool is not None:
            self._pool.close()
        self._lease.close()
        tasks = [own for task in task_dispatcher.tasks.values() if (own := action_task(task))]
        if tasks and self.record.events:
            self.record.close(tasks[0].plan, self.reporter, interrupted)
            if not is_all_accepted(find_standing(tasks[0].plan, self.record.events)):
                self.final_result = max(self.final_result, FAILURE)


def _selected_tasks(task_dispatcher: Any) -> list[ActionTask]:
    """Return our tasks among those that a command line selects, by name or by group."""
    tasks, names = task_dispatcher.tasks, list(task_dispatcher.selected_tasks)
    groups = [tasks[name].task_dep for name in names if tasks[name].has_subtask]
    chosen = {name for each in (names, *groups) for name in each}
    return [task for name in chosen if (task := action_task(tasks[name])) is not None]


def _check_toolchain(asked: list[ActionTask]) -> None:
    """Warn about a toolchain that isn't known. Raises InvalidCommand where it is refused."""
    try:
        if asked:
            check_toolchain(asked[0].plan.workspace, builds=True)
    except PipelineError as error:
        raise InvalidCommand(str(error)) from error


def _prepare_reports() -> None:
    """Import what the reports at the end of a run need, and compile its templates, while workers
    are busy: it is a tenth of a second."""
    with contextlib.suppress(Exception):  # whoever writes them says what is wrong
        from pipeline.report.render import render_all

        render_all(())


def _failure(task: ActionTask, error: Exception, reason: str = "") -> Event:
    text = str(error)
    if isinstance(error, OSError) and error.filename:
        text = one_line(f"{error.filename}: {error.strerror}")
    return make_event(task, "failed", reason=reason, error=text)
