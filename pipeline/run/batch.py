"""Runs actions as they become ready, and reruns those that lost an input.

Between the moment a blob is found in the store and the moment it is read, another process may evict
or delete it, or it may turn out to be damaged. It is then rebuilt within the same run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

from pipeline.plan.actions import Action
from pipeline.plan.export_parameters import parse_export
from pipeline.plan.plan import Plan
from pipeline.plan.tasks import ActionTask
from pipeline.report.events import Event, Outcome, make_event
from pipeline.run.action_status import ActionStatus, log_name
from pipeline.run.install import install
from pipeline.run.performed import Report
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError, describe_error
from pipeline.store.store import MissingBlobError

_ATTEMPTS = 3
Show = Callable[[Event], None]


class Outlook(Protocol):
    """A pool, as the progress display sees it: the running actions and the whole run.

    `selected` are the tasks of the run, `events` the events of actions that ended, whether or not
    they needed a worker.
    """

    selected: Sequence[ActionTask]
    events: Sequence[Event]

    @property
    def jobs(self) -> int: ...
    def find_status(self, action: Action) -> ActionStatus | None: ...
    def recall_seconds(self, action: Action | ActionTask) -> float | None: ...


# Takes the actions and an `Outlook`; returns a context that yields the callback for events.
Progress = Callable[[Sequence[Action], Outlook], AbstractContextManager[Show]]


class Batch:
    """Runs actions of a plan; more may be added during the run.

    Every worker report, including those of repeated attempts, is appended to `reports` as it
    arrives; pass a list to collect them there.
    """

    def __init__(
        self,
        plan: Plan,
        pool: Any,
        progress: Progress,
        reports: list[Report] | None = None,
    ) -> None:
        self._plan = plan
        self._pool = pool
        self._progress = progress
        self.reports = [] if reports is None else reports
        self._actions: list[Action] = []  # for the progress display
        # Keyed by the digest of the action that runs in place of the requested one.
        self._requested: dict[Digest, Action] = {}
        # Keyed by the digest of the requested action.
        self._attempts: Counter[Digest] = Counter()
        self._lost: list[Action] = []  # to be rerun
        self._shown = ExitStack()
        self._show: Show | None = None

    def close(self) -> None:
        """Close the progress display, which opened with the first action."""
        self._shown.close()
        self._show = None

    @property
    def is_busy(self) -> bool:
        """Whether an added action has not ended yet."""
        return bool(self._pool.is_busy or self._lost)

    def run(self, actions: Sequence[Action]) -> Iterator[tuple[Action, Event]]:
        """Yield each action with its final event, in the order in which the actions end."""
        self.add(actions)
        while self.is_busy:
            yield from self.next_ended()

    def add(self, actions: Sequence[Action]) -> None:
        """Add actions that are ready to run."""
        for action in actions:
            self._requested[action.digest] = action
        self._add(actions)

    def _add(self, actions: Sequence[Action]) -> None:
        self._actions += actions
        if self._show is None:
            shown = self._progress(self._actions, self._pool)
            self._show = self._shown.enter_context(shown)
        self._pool.add(actions)

    def drop_waiting(self) -> list[Action]:
        """Remove and return the actions that no worker has started."""
        dropped = [*self._pool.drop_waiting(), *self._lost]
        self._lost = []
        return [self._requested[action.digest] for action in dropped]

    def next_ended(self) -> Iterator[tuple[Action, Event]]:
        """Wait until actions end, and yield each with its final event.

        Actions that lost an input are rerun once no other action is running.
        """
        for action, event in self._next_events():
            requested = self._requested[action.digest]
            if event.outcome != "lost":
                yield requested, event
                continue
            self._attempts[requested.digest] += 1
            if self._attempts[requested.digest] < _ATTEMPTS:
                self._lost.append(action)
            else:
                yield requested, event._replace(outcome="failed")
        if self._lost and not self._pool.is_busy:
            lost, self._lost = self._lost, []
            yield from self._run_again(lost)

    def _run_again(self, lost: Sequence[Action]) -> Iterator[tuple[Action, Event]]:
        """Rebuild the inputs of actions and add the actions again.

        Yields a failure for each action whose inputs can't be rebuilt.
        """
        self._repair_inputs(lost)
        for action in lost:
            requested = self._requested[action.digest]
            unit = tuple(action.method.split("+")) if action.method else ()
            task = ActionTask(
                self._plan, action.kind, action.model, action.package, unit
            )
            remade = task.action()
            if remade is None:
                event = make_event(
                    action,
                    "failed",
                    error="its inputs were lost and could not be rebuilt",
                    log=log_name(action, self._plan.workspace),
                )
                yield requested, event
            else:
                self._requested[remade.digest] = requested
                self._add([remade])

    def _next_events(self) -> Iterator[tuple[Action, Event]]:
        assert self._show is not None
        for action, reported in self._pool.next_reports():
            report = self._install(action, reported)
            self.reports.append(report)
            # Failures are shown before their task reports them, successes once the caller has them.
            if report.event.error:
                self._show(report.event)
            yield action, report.event
            if not report.event.error:
                self._show(report.event)

    def _install(self, action: Action, report: Report) -> Report:
        """Install the files of an action into the package's folder.

        The report becomes a failure if that is not possible, or "lost" if the store no longer has a
        file.
        """
        if report.result is None:
            return report
        try:
            install(self._plan.workspace, action, report.result)
        except (PipelineError, OSError) as problem:
            if not report.event.error:
                outcome: Outcome = (
                    "lost" if isinstance(problem, MissingBlobError) else "failed"
                )
                event = report.event._replace(
                    outcome=outcome, error=describe_error(problem)
                )
                return report._replace(event=event)
        return report

    def _repair_inputs(self, lost: Sequence[Action]) -> None:
        """Rerun the exports, quantizations, and compilations that these actions depend on.

        If one fails, the actions fail with it.
        """
        plan = self._plan
        models = {action.model for action in lost}
        exports = [name for name in plan.exporters if parse_export(name)[0] in models]
        fleeting = [
            plan.models.export(m) for m in exports if not plan.models.is_current(m)
        ]
        self._repair(
            [*fleeting, *self._find_lost(plan.models.export(m) for m in exports)]
        )
        for name in {*models, *exports}:
            plan.forget(name)
        links = [str(action.package) for action in lost if action.kind == "link"]
        packages: dict[str, None] = {}
        for package in links:
            packages |= dict.fromkeys(plan.linked_from(package))
        compiles = self._find_lost(
            unit for package in packages for unit in plan.compiles(package) or ()
        )
        compiled = [*compiles, *(action for action in lost if action.kind == "compile")]
        quantized: list[Action] = []
        for action in compiled:
            planned = plan.quantizes(str(action.package)) or {}
            quantized += (
                planned[name] for name in action.inputs.quantizes if name in planned
            )
        for action in lost:
            # A validation also compares with quantized programs.
            if action.kind == "validate":
                quantized += (plan.quantizes(str(action.package)) or {}).values()
        self._repair(self._find_lost(quantized))
        self._repair(compiles)

    def _find_lost(self, actions: Iterable[Action]) -> list[Action]:
        """Return the actions whose results are not in the local store.

        A remote's claim to have a blob no longer counts here.
        """
        from pipeline.plan.kinds.table import KINDS  # a no-op run has no batch

        store = self._plan.workspace.store

        def is_here(action: Action) -> bool:
            entry = store.get(action.digest)
            return entry is not None and store.intact(
                KINDS[action.kind].blobs(entry.result)
            )

        return [action for action in actions if not is_here(action)]

    def _repair(self, actions: Sequence[Action]) -> None:
        """Run actions to completion and ignore their events.

        A failure shows when the actions that depend on them run again.
        """
        self._add(list({action.digest: action for action in actions}.values()))
        while self._pool.is_busy:
            for _ in self._next_events():
                pass
