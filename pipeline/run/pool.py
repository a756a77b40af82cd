"""Actions that are ready go to an executor, reports come back, and those whose worker died are
tried again."""

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

_LOOK = 0.2  # seconds between two looks at what is under way
_AGAIN = 2.0  # seconds until an action that waits for memory is thought of again


@dataclass
class Attempt:
    """An action that is to be run: what it is expected to take, how many seconds of others wait for
    it, how often its worker died so far, whether the event stream was told of this try, and whether
    this process has tried it in vain."""

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
    """Runs actions on an executor of up to `jobs` workers, which start when they are needed and are
    kept until `close`.

    Actions may be added at any time, and one starts as soon as a worker is free for it, those first
    behind which the most is still to be done.
    """

    def __init__(self, workspace: Workspace, jobs: int, always: bool) -> None:
        self.selected: Sequence[ActionTask] = ()  # of the run, which may tell more
        self.events: Sequence[Event] = ()
        self._own = workspace  # of this process
        self._workspace = replace(workspace)  # without what it has cached
        self._jobs = jobs
        self._always = always
        self._executor: Executor | None = None
        self._lost = ""  # why no action can run any more
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
        """The number of actions that run at a time, as far as that is known."""
        return self._jobs if self._executor is None else self._executor.width

    def find_status(self, action: Action) -> ActionStatus | None:
        """Return how far an action is; None where it is not under way."""
        return self._progress.find(action)

    def recall_seconds(self, action: Action | ActionTask) -> float | None:
        """Return the seconds that an action took before, None where the store knows of none."""
        return self._expectations.recall(action)

    @property
    def is_busy(self) -> bool:
        """Whether an action that was added has not ended yet."""
        return bool(self._waiting or self._under_way or self._to_run_alone)

    @property
    def idle_seconds(self) -> float:
        """The seconds, of all workers together, in which one was free for an action that waited."""
        return self._idleness.seconds

    def tell(self, stream: EventStream) -> None:
        """Tell an event stream what becomes of actions from now on."""
        self._progress.stream = stream

    def use_idle_core(self, work: Callable[[], None]) -> None:
        """Call a function once, while actions are waited for that leave a core idle."""
        self._idle_work = work

    def run(self, actions: Sequence[Action]) -> Iterator[tuple[Action, Report]]:
        """Yield the reports of actions, in the order in which they end."""
        self.add(actions)
        while self.is_busy:
            yield from self.next_reports()

    def add(self, actions: Sequence[Action]) -> None:
        """Take actions that are ready to run; `next_reports` starts them."""
        for action in actions:
            self._forget_last_run(action)
            self._wait_for_worker(self._expect(action))

    def drop_waiting(self) -> list[Action]:
        """Take back the actions that no worker has begun, and return them."""
        attempts = [*self._waiting, *self._to_run_alone]
        self._waiting, self._to_run_alone = [], []
        return [attempt.action for attempt in attempts]

    def next_reports(self) -> Iterator[tuple[Action, Report]]:
        """Start what may start, wait until actions end, and yield their reports.

        An action whose worker dies is tried again like any other, then once alone and with twice
        the memory. A validation is tried alone at once, without the method that ended its worker,
        as long as that is another one each time.
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
        """Remove what an earlier run wrote while it performed an action."""
        log = log_path(action, self._workspace)
        with suppress(OSError):  # its worker says what is wrong
            make_folder(log.parent, self._workspace.build)
            remove(log)
            remove(progress_path(action, self._workspace))  # of a run that was killed
        if action.kind == "validate":
            CrashLog(self._workspace.logs, str(action.package)).clear()

    def _take_what_runs_here(self) -> list[Attempt]:
        """Return what this process does itself, and no worker: it judges what was measured before,
        and puts new weights into what was made before, where no two actions would run at a time.
        That spares a worker's start."""
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
        # What never ran has nothing that new weights could be put into.
        return (
            is_alone
            and not self._workspace.executor
            and may_refit_here(attempt.action, self._own)
            and self._expectations.recall(attempt.action) is not None
        )

    def _goes_on(self, attempt: Attempt) -> None:
        """Tell that an attempt has started, and how far it is, while this process has it."""
        self._tell_start(attempt)
        self._progress.look([attempt.action])

    def _expect(self, action: Action) -> Attempt:
        expectations = self._expectations
        return Attempt(action, expectations.expect(action), expectations.ahead(action))

    def _run_alone(self, attempt: Attempt) -> Report:
        """Run an action whose worker died, alone."""
        action, deaths = attempt.action, attempt.deaths
        attempt = attempt.with_memory(2 * attempt.expected.peak)
        crash_log = CrashLog(self._workspace.logs, str(action.package))
        crash_log.clear(crashes=False)  # it may have died of what ran beside it
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
        """Start what may start, and wait until some attempts have ended. Return them with their
        reports, or with how their workers died; what waited is started in their place."""
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
        """Return the executor, or None where it is out of reach."""
        if self._executor is None and not self._lost:
            try:
                self._executor = open_executor(
                    self._workspace, self._jobs, self._always
                )
            except ExecutorLostError as error:
                self._lost = str(error)
        return self._executor

    def _start(self) -> Executor | None:
        """Start what may start now. Return the executor, None where it is out of reach."""
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
            attempt.told = False  # for the next try
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
        """Wait until an action is done, but so many seconds at most, and look after the others
        meanwhile; return those that are done."""
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
        """End the workers now, whatever they do, and all that they started."""
        if self._executor is not None:
            self._executor.close()
