"""The record of a run, and its end: files, counts, eviction, reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pipeline.moments import call_all
from pipeline.plan.actions import Action, unit_name
from pipeline.plan.plan import Plan
from pipeline.report.events import (
    ENDING,
    Event,
    describe_event,
    write_run,
)
from pipeline.report.stream import EventStream
from pipeline.run.performed import Report
from pipeline.store.errors import PipelineError, describe_error
from pipeline.store.files import sweep
from pipeline.store.store import Store
from pipeline.store.usage import (
    Moved,
    Usage,
    add_usage,
    read_moved,
    read_usage,
    usage_record,
)
from pipeline.store.visible import one_line
from pipeline.store.workspace import Workspace


class RunRecord:
    """The events of tasks, the reports of workers, and the use of caches by kind of action; `jobs`
    as doit was told, or 0."""

    def __init__(self, jobs: int = 0) -> None:
        self.jobs = jobs
        self.events: list[Event] = []
        self.reports: list[Report] = []
        self.usage: dict[str, Usage] = {}
        self.idle_seconds = 0.0  # of all workers, while an action was ready
        self._stream: EventStream | None = None

    def stream(self, workspace: Workspace) -> EventStream:
        """Return the event stream of this run."""
        if self._stream is None:
            facts = {
                "jobs": self.jobs or workspace.jobs,
                "executor": workspace.executor,
            }
            self._stream = EventStream(workspace.build, **facts)
        return self._stream

    def add(self, workspace: Workspace, event: Event) -> None:
        """Take the last event of a task. Those that were up to date are only counted in the stream:
        most are, where little is done."""
        self.events.append(event)
        stream = self.stream(workspace)
        if event.outcome != "up-to-date":
            facts = describe_event(event, (*ENDING, "stage"))
            stream.write("action-ended", event, **facts)

    def count(self, kind: str, usage: Usage) -> None:
        self.usage.setdefault(kind, Usage()).add(usage)

    def count_spared(self, store: Store, action: Action) -> None:
        """Count as hits what nobody looked at, since what is made from it was there: the methods of
        a package, and their quantization, as far as this store has them."""
        for kind in ("compile", "quantize"):
            for digest in getattr(action.inputs, f"{kind}s", {}).values():
                entry = store.read_entry(store.action_path(digest), digest)
                if entry is not None:
                    self.count(kind, Usage(hits=1, saved=entry.seconds))

    def close(self, plan: Plan, reporter: Any, interrupted: bool) -> None:
        """Write the records of a run, show its sum, and clean up after it.

        Args:
            reporter: doit's, which need not be ours.
        """
        plan.remember()
        remote = self._sum_remote(plan)
        moved = remote.get("bytes_fetched", 0), remote.get("bytes_pushed", 0)
        self._clean_up(plan, moved)
        self.events = list(_complete(plan, self.events))
        changed = any(event.outcome != "up-to-date" for event in self.events)
        with suppress(OSError):
            write_run(plan.workspace, self.events, remote)
            if changed:
                hits = [
                    event for event in self.events if event.start and not event.worker
                ]
                worked = [report.event for report in self.reports]
                caches = self._caches(plan, moved)
                list(call_all("record_run", plan.workspace, [*hits, *worked], caches))
        if hasattr(reporter, "summarize"):
            with suppress(OSError):  # a terminal that was closed
                reporter.summarize(plan, self.events, remote)
        if (
            changed
        ):  # after Ctrl-C too: what stood there may be of another package by now
            _write_overview(plan, reporter)
        self.stream(plan.workspace).close(
            interrupted=interrupted,
            idle_seconds=round(self.idle_seconds, 3),
            outcomes=Counter(event.outcome for event in self.events),
            caches=usage_record(self.usage, moved),
            remote=remote or None,
        )

    def _caches(self, plan: Plan, moved: Moved) -> dict[str, Any]:
        """Return what the caches gave in this run, and in all runs of this store."""
        store = plan.workspace.store
        return {
            "run": usage_record(self.usage, moved),
            "store": usage_record(read_usage(store), read_moved(store)),
        }

    def _clean_up(self, plan: Plan, moved: Moved) -> None:
        """After a run that changed something, add up the counts, remove what killed runs left,
        and evict."""
        workspace = plan.workspace
        usages = [*plan.models.archives.usage.items()]
        for report in self.reports:
            event = report.event
            usages += report.usage.items()
            if event.outcome in ("built", "refit"):
                usages.append((event.kind, Usage(misses=1, spent=event.seconds)))
        for kind, usage in usages:
            self.count(kind, usage)
        if not self.usage:
            return
        add_usage(workspace.store, self.usage, moved)
        for folder in (workspace.build, workspace.build / ".state", workspace.logs):
            sweep(folder)
        store = workspace.store
        if self.reports and store.cap is not None:
            for root in filter(None, (store.root, store.overflow)):
                with suppress(OSError, PipelineError):
                    list(call_all("evict", Store(root), store.cap))

    def _sum_remote(self, plan: Plan) -> dict[str, Any]:
        """Return what all processes asked of the remote tier, summed, and why it was given up."""
        if (remote := plan.workspace.store.remote) is None:
            return {}
        total, problems = remote.counts, []
        for counts, problem in filter(None, (report.remote for report in self.reports)):
            total += counts
            problems.append(problem)
        problem = next(filter(None, [*problems, remote.problem]), "")
        believes_all = remote.settings.believes_all
        return {**vars(total), "believes_all": believes_all, "problem": problem}


def _complete(plan: Plan, events: list[Event]) -> Iterator[Event]:
    """Yield the events, and those of methods that doit did not visit: of packages that were current
    as a whole, and the quantization of methods that were."""
    yield from events
    visited: set[tuple[str, str | None, str | None]] = set()
    units: list[Event] = []  # compiled before, by what doit visited
    linked: list[Event] = []
    for event in events:
        visited.add((event.kind, event.package, event.method))
        if event.outcome in ("up-to-date", "hit"):
            if event.kind == "compile":
                units.append(event._replace(start=0.0))
            elif event.kind == "link":
                linked.append(event._replace(start=0.0))
    compiles: list[Event] = []
    for event in linked:
        package = event.package
        facts: tuple[Any, ...] = event[3:]
        for unit in plan.units(str(package)):
            name = unit_name(unit)
            if ("compile", package, name) not in visited:
                # `_replace`, called for ten thousand methods, takes three times as long.
                compiles.append(Event("compile", package, name, *facts))
    for event in (*units, *compiles):
        quantized = plan.quantized(str(event.package))
        if not quantized:
            continue
        for method in str(event.method).split("+"):
            if (
                method in quantized
                and ("quantize", event.package, method) not in visited
            ):
                yield event._replace(
                    kind="quantize", method=method, seconds=0.0, peak_bytes=0
                )
    yield from compiles


def _write_overview(plan: Plan, reporter: Any) -> None:
    """Write the reports over all packages; the first ones are worth a line."""
    index = plan.workspace.build / "index.html"
    existed = index.exists()
    try:
        list(call_all("write_overview", plan.workspace, plan.configs.packages))
        is_first = index.exists() and not existed
        if is_first and hasattr(reporter, "summarize"):
            reporter.write(f"report: {index.relative_to(plan.workspace.root)}\n")
    except Exception as error:  # a record that was edited, say: the run is what it was
        text = one_line(describe_error(error))
        reporter.write(f"the reports over all packages could not be written: {text}\n")
