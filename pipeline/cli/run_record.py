"""The record of a run, and its end: files, counts, eviction, reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pipeline.plan.actions import unit_name
from pipeline.plan.plan import Plan
from pipeline.report.events import Event, write_run, write_timeline
from pipeline.run.expectations import remember
from pipeline.run.worker import Report
from pipeline.store.errors import PipelineError
from pipeline.store.files import sweep
from pipeline.store.maintenance import evict
from pipeline.store.usage import Usage, add_usage
from pipeline.store.visible import one_line


@dataclass
class RunRecord:
    """The events of tasks, the reports of workers, and the use of caches by kind of action."""

    events: list[Event] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    usage: dict[str, Usage] = field(default_factory=dict)

    def count(self, kind: str, usage: Usage) -> None:
        self.usage.setdefault(kind, Usage()).add(usage)

    def close(self, plan: Plan, reporter: Any, interrupted: bool) -> None:
        """Write the records of a run, show its sum, and clean up after it.

        Args:
            reporter: doit's, which need not be ours.
        """
        plan.remember()
        self._clean_up(plan)
        self.events = list(_complete(plan, self.events))
        remote = self._sum_remote(plan)
        changed = any(event.outcome != "up-to-date" for event in self.events)
        with suppress(OSError):
            write_run(plan.workspace, self.events, remote)
            if changed:
                hits = [event for event in self.events if event.start and not event.worker]
                write_timeline(plan.workspace, [*hits, *(report.event for report in self.reports)])
        if hasattr(reporter, "summarize"):
            with suppress(OSError):  # a terminal that was closed
                reporter.summarize(plan, self.events, remote)
        if changed and not interrupted:
            _write_overview(plan, reporter)

    def _clean_up(self, plan: Plan) -> None:
        """After a run that changed something, add up the counts, remove what killed runs left,
        and evict."""
        workspace = plan.workspace
        usages = [*plan.models.usage.items()]
        for report in self.reports:
            event = report.event
            usages += report.usage.items()
            if event.outcome in ("built", "refit"):
                usages.append((event.kind, Usage(misses=1, spent=event.seconds)))
        for kind, each in usages:
            self.count(kind, each)
        if not self.usage:
            return
        add_usage(workspace.store, self.usage)
        remember(workspace.store, (report.event for report in self.reports))
        for folder in (workspace.build, workspace.build / ".state", workspace.logs):
            sweep(folder)
        if self.reports and workspace.store.cap is not None:
            with suppress(OSError, PipelineError):
                evict(workspace.store, workspace.store.cap)

    def _sum_remote(self, plan: Plan) -> dict[str, Any]:
        """Return what all processes asked of the remote tier, summed, and why it was given up."""
        if (remote := plan.workspace.store.remote) is None:
            return {}
        total, problems = remote.counts, []
        for counts, problem in filter(None, (report.remote for report in self.reports)):
            total += counts
            problems.append(problem)
        problem = next(filter(None, [*problems, remote.problem]), "")
        return {**vars(total), "believes_all": remote.settings.believes_all, "problem": problem}


def _complete(plan: Plan, events: list[Event]) -> Iterator[Event]:
    """Yield the events, and those of methods that doit did not visit: of packages that were current
    as a whole, and the quantization of methods that were."""
    yield from events
    known = {(event.kind, event.package, event.method) for event in events}
    current = [each._replace(start=0.0) for each in events if each.outcome in ("up-to-date", "hit")]
    compiles = [
        link._replace(kind="compile", method=unit_name(unit))
        for link in current
        if link.kind == "link"
        for unit in plan.units(str(link.package))
        if ("compile", link.package, unit_name(unit)) not in known
    ]
    for unit in [*(event for event in current if event.kind == "compile"), *compiles]:
        for method in str(unit.method).split("+"):
            quantized = method in plan.quantized(str(unit.package))
            if quantized and ("quantize", unit.package, method) not in known:
                yield unit._replace(kind="quantize", method=method, seconds=0.0, peak_bytes=0)
    yield from compiles


def _write_overview(plan: Plan, reporter: Any) -> None:
    from pipeline.report.render import write_overview  # imports templates and charts

    try:
        write_overview(plan.workspace, plan.packages)
    except Exception as error:  # a record that was edited, say: the run is what it was
        text = one_line(f"{type(error).__name__}: {error}")
        reporter.write(f"the reports over all packages could not be written: {text}\n")
