"""Runs actions in worker processes, and again those that lost an input.

Between the moment when something is seen in the store and that when it is read, another process may
evict or delete it, or it may turn out to be damaged. Then it is made again, in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from pipeline.plan.actions import Action
from pipeline.plan.export_parameters import parse_export
from pipeline.plan.kinds.table import KINDS
from pipeline.plan.plan import Plan
from pipeline.plan.tasks import ActionTask
from pipeline.report.events import Event, Outcome, make_event
from pipeline.run.action_status import ActionStatus, log_name, read_progress
from pipeline.run.expectations import Expectations
from pipeline.run.install import install
from pipeline.run.worker import Report
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError, describe_error
from pipeline.store.store import MissingBlobError

_ATTEMPTS = 3
Show = Callable[[Event], None]


class Outlook(NamedTuple):
    """What can be said of actions while they run: how far one is, how many seconds it took when it
    ran before, and how many run at a time."""

    status: Callable[[Action], ActionStatus | None]
    expected: Callable[[Action], float | None]
    workers: Callable[[], int]


# Gives, for actions and their outlook, a context with the function to call with each event.
Progress = Callable[[Sequence[Action], Outlook], AbstractContextManager[Show]]


class Batch:
    """Runs actions of a plan.

    The reports of all workers, with repeated attempts, go to `reports` as they come: to the list
    that is given, or one of its own.
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

    def run(self, actions: Sequence[Action]) -> Iterator[tuple[Action, Event]]:
        """Yield each action with its last event, in the order in which they end."""
        requested: dict[Digest, Action] = {action.digest: action for action in actions}
        queue = list(actions)
        for attempt in range(_ATTEMPTS):
            lost = []
            for action, event in self._events(queue):
                if event.outcome == "lost" and attempt < _ATTEMPTS - 1:
                    lost.append(action)
                else:
                    outcome = "failed" if event.outcome == "lost" else event.outcome
                    yield requested[action.digest], event._replace(outcome=outcome)
            if not lost:
                return
            queue = []
            self._repair_inputs(lost)
            for action in lost:
                unit = tuple(action.method.split("+")) if action.method else ()
                task = ActionTask(
                    self._plan, action.kind, action.model, action.package, unit
                )
                if (remade := task.action()) is None:
                    error = "what it needs was lost and could not be made again"
                    facts = {
                        "error": error,
                        "log": log_name(action, self._plan.workspace),
                    }
                    yield (
                        requested[action.digest],
                        make_event(action, "failed", **facts),
                    )
                else:
                    requested[remade.digest] = requested[action.digest]
                    queue.append(remade)

    def _events(self, queue: Sequence[Action]) -> Iterator[tuple[Action, Event]]:
        if not queue:
            return
        workspace = self._plan.workspace
        status = partial(read_progress, workspace=workspace)
        recall = Expectations(workspace.store).recall
        with self._progress(
            queue, Outlook(status, recall, lambda: self._pool.jobs)
        ) as show:
            for action, reported in self._pool.run(queue):
                report = self._install(action, reported)
                self.reports.append(report)
                if report.event.error:  # what its task says of it follows
                    show(report.event)
                yield action, report.event
                if not report.event.error:  # whoever asked has recorded it by now
                    show(report.event)

    def _install(self, action: Action, report: Report) -> Report:
        """Put the files that an action made into the package's folder. What can't be put there
        fails, or is lost where the store has it no more."""
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
        """Export, quantize and compile again what these actions need. They fail with it."""
        plan = self._plan
        models = {action.model for action in lost}
        exports = [name for name in plan.exporters if parse_export(name)[0] in models]
        fleeting = [
            plan.models.export(m) for m in exports if not plan.models.is_current(m)
        ]
        self._repair([*fleeting, *self._lost(plan.models.export(m) for m in exports)])
        for name in {*models, *exports}:
            plan.forget(name)
        links = [str(action.package) for action in lost if action.kind == "link"]
        packages: dict[str, None] = {}
        for package in links:
            packages |= dict.fromkeys(plan.linked_from(package))
        compiles = self._lost(
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
            if action.kind == "validate":  # which compares with quantized programs too
                quantized += (plan.quantizes(str(action.package)) or {}).values()
        self._repair(self._lost(quantized))
        self._repair(compiles)

    def _lost(self, actions: Iterable[Action]) -> list[Action]:
        """Return those whose results are no longer here, and not at a remote either: its word that
        it has a blob is not enough any more."""
        store = self._plan.workspace.store

        def is_here(action: Action) -> bool:
            entry = store.get(action.digest)
            return entry is not None and store.intact(
                KINDS[action.kind].blobs(entry.result)
            )

        return [action for action in actions if not is_here(action)]

    def _repair(self, actions: Sequence[Action]) -> None:
        list(self._events(list({action.digest: action for action in actions}.values())))
