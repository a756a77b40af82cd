"""Submits ready actions to an executor, collects reports, and retries actions whose worker died."""

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from pipeline.moments import call_all
from pipeline.plan.actions import Action
from pipeline.plan.tasks import ActionTask
from pipeline.report.events import Event, make_event
from pipeline.report.stream import EventStream
from pipeline.run.action_status import ActionStatus, log_name, log_path, progress_path
from pipeline.run.admission import Cost, Idleness, NoExpectations, choose_next
from pipeline.run.executors import Executor, ExecutorLostError, WorkerLostError
from pipeline.run.executors.choice import open_executor
from pipeline.run.performed import Report
from pipeline.run.progress import ProgressLog
from pipeline.run.worker import may_judge_here, may_refit_here, run_here
from pipeline.store.files import make_folder, remove
from pipeline.store.settings import usable_cores
from pipeline.store.sizes import human_size
from pipeline.store.workspace import Workspace
from pipeline.validate.crashes import CrashLog

_LOOK = 0.2  # seconds between two checks of the running actions
_AGAIN = 2.0  # seconds until an action that waits for memory is considered again


@dataclass
class Attempt:
    """One try at an action.

    Attributes:
        expected: the expected cost.
        ahead: seconds of the longest chain of actions that waits for this one.
        deaths: how often its worker has died so far.
        told: whether the event stream has reported this try.
        is_for_worker: whether this process has already tried it in vain.
    """

    action: Action
    expected: Cost
    ahead: float = 0.0
    deaths: int = 0
    told: bool = False
    is_for_worker: bool = False

    @property
    def order(self) -> float:
        return -(self.expected.seconds + self.ahead)

    def with_memory(self, memory: int) -> Attempt:
        return replace(self, expected=self.expected._replace(peak=memory))


Running = dict[Future[Report], Attempt]


class Pool:
    """Runs actions on an executor with up to `jobs` workers.

    Workers start when they are needed and are kept until `close`. Actions may be added at any time;
    each starts as soon as a worker is free, those with the longest remaining path first.
    """

    def __init__(self, workspace: Workspace, jobs: int, always: bool) -> None:
        self.selected: Sequence[ActionTask] = ()  # of the whole run
        self.events: Sequence[Event] = ()
        self._own = workspace  # with this process's caches
        self._workspace = replace(workspace)  # without them, to send to workers
        self._jobs = jobs
        self._always = always
        self._executor: Executor | None = None
        self._lost = ""  # why no more actions can run
        self._progress = ProgressLog(self._workspace)
        self._idle_work: Callable[[], None] | None = None
        expectations = call_all("expect_costs", self._workspace.store)
        self._expectations: NoExpectations = next(expectations, NoExpectations())
        self._waiting: list[Attempt] = []
        self._under_way: Running = {}
        self._to_run_alone: list[Attempt] = []
        self._idleness = Idleness()

    @property
    def jobs(self) -> int:
        """The number of actions that can run at once; the setting until an executor is open."""
        return self._jobs if self._executor is None else self._executor.width

    def find_status(self, action: Action) -> ActionStatus | None:
        """Return the progress of an action, or None if it isn't running."""
        return self._progress.find(action)

    def recall_seconds(self, action: Action | ActionTask) -> float | None:
        """Return how many seconds an action took last time, or None if the store has no record."""
        return self._expectations.recall(action)

    @property
    def is_busy(self) -> bool:
        """Whether an added action has not ended yet."""
        return bool(self._waiting or self._under_way or self._to_run_alone)

    @property
    def idle_seconds(self) -> float:
        """Seconds, summed over all workers, during which one was idle while an action waited."""
        return self._idleness.seconds

    def tell(self, stream: EventStream) -> None:
        """Report the progress of actions to an event stream from now on."""
        self._progress.stream = stream

    def use_idle_core(self, work: Callable[[], None]) -> None:
        """Call a function once, as soon as the running actions leave a core idle."""
        self._idle_work = work

    def run(self, actions: Sequence[Action]) -> Iterator[tuple[Action, Report]]:
        """Yield the reports of actions, in the order in which the actions end."""
        self.add(actions)
        while self.is_busy:
            yield from self.next_reports()

    def add(self, actions: Sequence[Action]) -> None:
        """Add actions that are ready to run; `next_reports` starts them."""
        for action in actions:
            self._forget_last_run(action)
            self._wait_for_worker(self._expect(action))

    def drop_waiting(self) -> list[Action]:
        """Remove and return the actions that no worker has started."""
        attempts = [*self._waiting, *self._to_run_alone]
        self._waiting, self._to_run_alone = [], []
        return [attempt.action for attempt in attempts]

    def next_reports(self) -> Iterator[tuple[Action, Report]]:
        """Start what can start, wait until actions end, and yield their reports.

        An action whose worker dies is first retried like any other, then alone and with twice the
        memory. A validation is retried alone at once, without the method that killed its worker, as
        long as it is a different method each time.
        """
        here = self._take_what_runs_here()
        if self._waiting and here:
            self._start()
        for attempt in here:
            report = run_here(
                attempt.action, self._own, partial(self._goes_on, attempt)
            )
            self._progress.end(attempt.action)
            if report is None:
                self._wait_for_worker(replace(attempt, is_for_worker=True))
            else:
                yield attempt.action, report
        if not here:
            yield from self._next_from_workers()

    def _next_from_workers(self) -> Iterator[tuple[Action, Report]]:
        if self._to_run_alone and not (self._waiting or self._under_way):
            attempt = self._to_run_alone.pop(0)
            yield attempt.action, self._run_alone(attempt)
            return
        for attempt, ending in self._endings():
            if isinstance(ending, Report):
                yield attempt.action, ending
            else:
                self._try_again(replace(attempt, deaths=attempt.deaths + 1))

    def _try_again(self, attempt: Attempt) -> None:
        if attempt.action.kind == "validate" or attempt.deaths > 1:
            self._to_run_alone.append(attempt)
        else:
            self._wait_for_worker(attempt)

    def _wait_for_worker(self, attempt: Attempt) -> None:
        insort(self._waiting, attempt, key=lambda waiting: waiting.order)
        self._look_at_idleness()

    def _forget_last_run(self, action: Action) -> None:
        """Remove the files that an earlier run wrote while it performed an action."""
        log = log_path(action, self._workspace)
        with suppress(OSError):  # the worker will report the problem
            make_folder(log.parent, self._workspace.build)
            remove(log)
            remove(progress_path(action, self._workspace))  # of a killed run
        if action.kind == "validate":
            CrashLog(self._workspace.logs, str(action.package)).clear()

    def _take_what_runs_here(self) -> list[Attempt]:
        """Take from the queue the actions that this process performs itself, and return them.

        It judges packages that were measured before. If no two actions would run at once, it also
        puts new weights into earlier results. Both save the start of a worker.
        """
        if self._always:
            return []
        is_alone = min(self._jobs, len(self._waiting)) == 1 and not self._under_way
        here = []
        for attempt in list(self._waiting):
            if self._may_run_here(attempt, is_alone):
                self._waiting.remove(attempt)
                here.append(attempt)
        return here

    def _may_run_here(self, attempt: Attempt, is_alone: bool) -> bool:
        if attempt.is_for_worker:
            return False
        if may_judge_here(attempt.action, self._own):
            return True
        # An action that never ran has no result to put new weights into.
        return (
            is_alone
            and not self._workspace.executor
            and may_refit_here(attempt.action, self._own)
            and self._expectations.recall(attempt.action) is not None
        )

    def _goes_on(self, attempt: Attempt) -> None:
        """Report that this process has started an attempt, and its progress since."""
        self._tell_start(attempt)
        self._progress.look([attempt.action])

    def _expect(self, action: Action) -> Attempt:
        expectations = self._expectations
        return Attempt(action, expectations.expect(action), expectations.ahead(action))

    def _run_alone(self, attempt: Attempt) -> Report:
        """Run an action alone after its worker has died."""
        action, deaths = attempt.action, attempt.deaths
        attempt = attempt.with_memory(2 * attempt.expected.peak)
        crash_log = CrashLog(self._workspace.logs, str(action.package))
        crash_log.clear(crashes=False)  # another action may have killed it
        while True:
            self._waiting.append(attempt)
            [(_, ending)] = self._endings()
            if isinstance(ending, Report):
                return ending
            deaths += 1
            if not crash_log.record_crash(ending.signals):
                return self._give_up(action, ending, deaths)

    def _give_up(self, action: Action, lost: WorkerLostError, deaths: int) -> Report:
        how = f" ({lost.signals})" if lost.signals else ""
        memory = f"it held {human_size(lost.peak_bytes)}" if lost.peak_bytes else ""
        story = "; ".join(filter(None, (f"{deaths} times", memory, lost.system)))
        event = make_event(
            action,
            "failed",
            error=f"its worker process died{how}, {story}",
            stage=lost.stage or "worker",
            peak_bytes=lost.peak_bytes,
            log=log_name(action, self._workspace),
            host=lost.host,
        )
        return Report(event)

    def _endings(self) -> list[tuple[Attempt, Report | WorkerLostError]]:
        """Start what can start, wait for some attempts to end, and start others in their place.

        Returns:
            The attempts that ended, each with its report or with how its worker died.
        """
        executor = self._start()
        if executor is None or (self._lost and not self._under_way):
            attempts, self._waiting = self._waiting, []
            return [(attempt, self._not_run(attempt.action)) for attempt in attempts]
        ended: list[tuple[Attempt, Report | WorkerLostError]] = []
        can_start = bool(self._waiting) and len(self._under_way) < executor.slots
        for future in self._wait(executor, _AGAIN if can_start else None):
            attempt = self._under_way.pop(future)
            ended.append((attempt, self._outcome(attempt.action, future)))
        self._look_at_idleness()
        self._start()
        return ended

    def _open(self) -> Executor | None:
        """Return the executor, opening it if necessary, or None if it can't be reached."""
        if self._executor is None and not self._lost:
            try:
                self._executor = open_executor(
                    self._workspace, self._jobs, self._always
                )
            except ExecutorLostError as error:
                self._lost = str(error)
        return self._executor

    def _start(self) -> Executor | None:
        """Start what can start now; return the executor, or None if it can't be reached."""
        executor = self._open() if self._waiting else self._executor
        if executor is None or self._lost:
            return executor
        while self._waiting and len(self._under_way) < executor.slots:
            place = choose_next(
                (attempt.expected for attempt in self._waiting),
                (attempt.expected for attempt in self._under_way.values()),
                executor.free_memory(),
            )
            if place is None:
                break
            attempt = self._waiting.pop(place)
            self._tell_start(attempt)
            attempt.told = False  # so that the next try is reported
            future = executor.submit(attempt.action, attempt.expected.peak)
            self._under_way[future] = attempt
        self._look_at_idleness()
        return executor

    def _look_at_idleness(self) -> None:
        width = self.jobs
        free = max(0, width - len(self._under_way))
        self._idleness.look(min(free, len(self._waiting)))

    def _tell_start(self, attempt: Attempt) -> None:
        if not attempt.told:
            attempt.told = True
            self._progress.start(attempt.action, attempt.expected, attempt.deaths + 1)

    def _outcome(
        self, action: Action, future: Future[Report]
    ) -> Report | WorkerLostError:
        self._progress.end(action)
        error = future.exception()
        if isinstance(error, WorkerLostError):
            self._progress.lose(action, error)
            return error
        if isinstance(error, ExecutorLostError):
            self._lost = str(error)
            return self._not_run(action)
        return future.result()

    def _not_run(self, action: Action) -> Report:
        return Report(make_event(action, "failed", error=self._lost))

    def _wait(self, executor: Executor, seconds: float | None) -> set[Future[Report]]:
        """Wait until a running action ends, up to a time limit, and return the finished futures.

        Meanwhile, update the progress and memory use of the running actions.
        """
        end = math.inf if seconds is None else time.monotonic() + seconds
        under_way = self._under_way
        while True:
            finished = wait(under_way, timeout=_LOOK, return_when=FIRST_COMPLETED).done
            if finished or time.monotonic() > end:
                return finished
            executor.look()
            self._progress.look(attempt.action for attempt in under_way.values())
            if self._idle_work is not None and len(under_way) < usable_cores():
                work, self._idle_work = self._idle_work, None
                work()

    def close(self) -> None:
        """Kill the workers, whatever they are doing, and all processes that they started."""
        if self._executor is not None:
            self._executor.close()
