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

from pipeline.plan.actions import Action
from pipeline.report.events import make_event
from pipeline.report.stream import EventStream
from pipeline.run.action_status import log_name, log_path, progress_path
from pipeline.run.admission import choose_next, longest_first
from pipeline.run.executors import Executor, ExecutorLostError, WorkerLostError
from pipeline.run.executors.choice import open_executor
from pipeline.run.expectations import Expectations
from pipeline.run.progress import Progress
from pipeline.run.worker import Report, may_judge_here, may_refit_here, run_here
from pipeline.store.costs import Cost
from pipeline.store.files import make_folder, remove
from pipeline.store.settings import usable_cores
from pipeline.store.sizes import human_size
from pipeline.store.workspace import Workspace
from pipeline.validate.crashes import CrashLog

_LOOK = 0.2  # seconds between two looks at what is under way
_AGAIN = 2.0  # seconds until an action that waits for memory is thought of again


@dataclass
class Attempt:
    """An action that is to be run: what it is expected to take, how often its worker died so far,
    and whether the event stream was told of this try."""

    action: Action
    expected: Cost
    deaths: int = 0
    told: bool = False

    @property
    def order(self) -> float:
        return longest_first(self.expected)

    def with_memory(self, memory: int) -> Attempt:
        return replace(self, expected=self.expected._replace(peak=memory))


Running = dict[Future[Report], Attempt]


class Pool:
    """Runs actions on an executor of up to `jobs` workers, which start when they are needed and are
    kept until `close`."""

    def __init__(self, workspace: Workspace, jobs: int, always: bool) -> None:
        self._own = workspace  # of this process
        self._workspace = replace(workspace)  # without what it has cached
        self._jobs = jobs
        self._always = always
        self._executor: Executor | None = None
        self._lost = ""  # why no action can run any more
        self._progress = Progress(self._workspace)
        self._idle_work: Callable[[], None] | None = None

    @property
    def jobs(self) -> int:
        """The number of actions that run at a time, as far as that is known."""
        return self._jobs if self._executor is None else self._executor.width

    def tell(self, stream: EventStream) -> None:
        """Tell an event stream what becomes of actions from now on."""
        self._progress.stream = stream

    def use_idle_core(self, work: Callable[[], None]) -> None:
        """Call a function once, while actions are waited for that leave a core idle."""
        self._idle_work = work

    def run(self, ready: Sequence[Action]) -> Iterator[tuple[Action, Report]]:
        """Yield the reports of all actions, in the order in which they end. They start by
        `choose_next`.

        One whose worker dies is tried again like any other, then once alone and with twice the
        memory. A validation is tried alone at once, without the method that ended its worker, as
        long as that is another one each time.
        """
        for action in ready:
            with suppress(OSError):  # its worker says what is wrong
                make_folder(
                    log_path(action, self._workspace).parent, self._workspace.build
                )
                remove(log_path(action, self._workspace))
                # Of a run that was killed.
                remove(progress_path(action, self._workspace))
            CrashLog(
                self._workspace.logs, str(action.package)
            ).clear()  # only a validation writes
        alone: list[Attempt] = []
        expectations = Expectations(self._workspace.store)
        waiting = sorted(
            self._expect(ready, expectations), key=lambda attempt: attempt.order
        )
        yield from self._run_here(waiting, expectations)
        for attempt, ending in self._run(waiting):
            if isinstance(ending, Report):
                yield attempt.action, ending
                continue
            retry = replace(attempt, deaths=attempt.deaths + 1)
            last = attempt.action.kind == "validate" or retry.deaths > 1
            if last:
                alone.append(retry)
            else:
                insort(
                    waiting, retry, key=lambda waiting_attempt: waiting_attempt.order
                )
        for attempt in alone:
            yield attempt.action, self._run_alone(attempt)

    def _run_here(
        self, waiting: list[Attempt], expectations: Expectations
    ) -> Iterator[tuple[Action, Report]]:
        """Let this process judge what was measured before, and put new weights into what was made
        before where no two actions would run at a time: that spares a worker's start. What it
        doesn't run stays in `waiting`."""
        if self._always:
            return
        alone = min(self._jobs, len(waiting)) == 1 and not self._workspace.executor
        for attempt in list(waiting):
            action = attempt.action
            # What never ran has nothing that new weights could be put into.
            is_refitted = (
                alone
                and may_refit_here(action, self._own)
                and expectations.recall(action) is not None
            )
            if not is_refitted and not may_judge_here(action, self._own):
                continue
            if report := run_here(action, self._own, partial(self._goes_on, attempt)):
                waiting.remove(attempt)
                yield action, report

    def _goes_on(self, attempt: Attempt) -> None:
        """Tell that an attempt has started, and how far it is, while this process has it."""
        self._tell_start(attempt)
        self._progress.look([attempt.action])

    def _expect(
        self, actions: Sequence[Action], expectations: Expectations
    ) -> Iterator[Attempt]:
        for action in actions:
            yield Attempt(action, expectations.expect(action))

    def _run_alone(self, attempt: Attempt) -> Report:
        """Run an action whose worker died, alone."""
        action, deaths = attempt.action, attempt.deaths
        attempt = attempt.with_memory(2 * attempt.expected.peak)
        crash_log = CrashLog(self._workspace.logs, str(action.package))
        crash_log.clear(crashes=False)  # it may have died of what ran beside it
        while True:
            [(_, ending)] = self._run([attempt])
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

    def _run(
        self, waiting: list[Attempt]
    ) -> Iterator[tuple[Attempt, Report | WorkerLostError]]:
        """Yield each attempt with its report, or with how its worker died. Attempts that are added
        to `waiting` meanwhile are run, too."""
        executor = self._open() if waiting else None
        under_way: Running = {}
        while under_way or (waiting and not self._lost):
            assert executor is not None
            if not self._lost:
                self._start(executor, waiting, under_way)
            can_start = bool(waiting) and len(under_way) < executor.slots
            for future in self._wait(
                executor, under_way, _AGAIN if can_start else None
            ):
                attempt = under_way.pop(future)
                yield attempt, self._outcome(attempt.action, future)
        while waiting:
            attempt = waiting.pop(0)
            yield attempt, self._not_run(attempt.action)

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

    def _start(
        self, executor: Executor, waiting: list[Attempt], under_way: Running
    ) -> None:
        """Start what may start now."""
        while waiting and len(under_way) < executor.slots:
            running = [attempt.expected for attempt in under_way.values()]
            place = choose_next(
                (e.expected for e in waiting), running, executor.free_memory()
            )
            if place is None:
                return
            attempt = waiting.pop(place)
            self._tell_start(attempt)
            attempt.told = False  # for the next try
            under_way[executor.submit(attempt.action, attempt.expected.peak)] = attempt

    def _tell_start(self, attempt: Attempt) -> None:
        if not attempt.told:
            attempt.told = True
            self._progress.start(attempt.action, attempt.expected, attempt.deaths + 1)

    def _outcome(
        self, action: Action, future: Future[Report]
    ) -> Report | WorkerLostError:
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

    def _wait(
        self, executor: Executor, under_way: Running, seconds: float | None
    ) -> set[Future[Report]]:
        """Wait until an action is done, but so many seconds at most, and look after the others
        meanwhile; return those that are done."""
        end = math.inf if seconds is None else time.monotonic() + seconds
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
