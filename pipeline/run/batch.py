"""Running what is wanted in worker processes, and again what lost something that it needs.

Between the moment when something is seen in the store and that when it is read, another process may
evict or delete it, or it may turn out to be damaged. Then it is made again, in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.plan.status import Status, compile_status, export_status, quantize_status
from pipeline.report.timeline import Span
from pipeline.run.steps import Step
from pipeline.run.worker import Report, progress_of
from pipeline.store.maintenance import Usage

_ATTEMPTS = 3


class Waiting(NamedTuple):
    """A task of ours that waits for its action; `node` is doit's."""

    node: Any
    step: Step
    status: Status


class Wanted(NamedTuple):
    """An action, and the tasks that it is for."""

    action: Action
    tasks: list[Waiting]


class Batch:
    """`remote` is what the workers tell of the remote tier, `spans` what they did when.

    Args:
        progress: gives, for actions and a function that tells how many of how many steps one of
            them has done, a context with the function to call with each report.
        count: is called with every use of the store's caches, by kind of action.
    """

    def __init__(
        self, plan: Plan, pool: Any, progress: Any, count: Callable[[str, Usage], None]
    ) -> None:
        self._plan = plan
        self._pool = pool
        self._progress = progress
        self._count = count
        self.remote: list[tuple[Any, str]] = []
        self.spans: list[Span] = []

    def run(self, wanted: Sequence[Wanted]) -> Iterator[tuple[Wanted, Report]]:
        """The last report of each, in the order in which they end."""
        for attempt in range(_ATTEMPTS):
            by_digest = {each.action.digest: each for each in wanted}
            lost = []
            for action, report in self._reports([each.action for each in wanted]):
                if report.missing and attempt < _ATTEMPTS - 1:
                    lost.append(by_digest[action.digest])
                else:
                    yield by_digest[action.digest], report
            if not lost:
                return
            wanted = []
            self._make_what_is_missing([each.action for each in lost])
            for each in lost:
                again = each.tasks[0].step.action()
                if again is None:
                    yield each, Report(error="what it needs was lost and could not be made again")
                else:
                    wanted.append(Wanted(again, each.tasks))

    def _reports(self, queue: Sequence[Action]) -> Iterator[tuple[Action, Report]]:
        if not queue:
            return
        with self._progress(queue, self._steps) as tell:
            for action, report in self._pool.run(queue):
                tell(action, report)
                for kind, usage in report.usage.items():
                    self._count(kind, usage)
                if report.remote is not None:
                    self.remote.append(report.remote)
                if report.worker:
                    self.spans.append(_span(action, report))
                yield action, report

    def _steps(self, action: Action) -> tuple[int, int] | None:
        return progress_of(action, self._plan.workspace)

    def _make_what_is_missing(self, lost: Sequence[Action]) -> None:
        """Exports, quantizes and compiles again what these actions need; a failure of it is told
        by them."""
        plan = self._plan
        models = {action.model for action in lost}
        exports = [model for model in plan.exporters if model in models]
        stale = [plan.models.export(m) for m in exports if not export_status(plan, m).current]
        self._repair(stale)
        for model in models:
            plan.forget(model)
        compiles = [
            unit
            for action in lost
            if action.kind == "link"
            for unit in plan.compiles(str(action.package)) or ()
            if compile_status(plan, str(action.package), unit).state == "stale"
        ]
        quantizes = [
            quantize
            for action in [*compiles, *(action for action in lost if action.kind == "compile")]
            for quantize in action.where["quantizes"].values()
            if quantize_status(plan, str(action.package), quantize).state == "stale"
        ]
        self._repair(_distinct(quantizes))
        self._repair(_distinct(compiles))

    def _repair(self, queue: Sequence[Action]) -> None:
        for action, report in self._reports(queue):
            self._count(action.kind, Usage(misses=1, spent=report.seconds))


def _span(action: Action, report: Report) -> Span:
    outcome = "failed" if report.error else "hit" if report.done else "built"
    begin = report.started
    return Span(
        kind=action.kind,
        package=action.package,
        method=action.method,
        model=action.model,
        outcome="lost" if report.missing else outcome,
        worker=report.worker,
        start=begin,
        end=begin + report.seconds,
        stages=[(name, begin + start, begin + end) for name, start, end in report.spans],
        peak_bytes=report.peak_bytes,
        error=report.error,
    )


def _distinct(actions: Sequence[Action]) -> list[Action]:
    return list({action.digest: action for action in actions}.values())
