"""The record of a run, and the work at its end: files, counts, eviction, reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pipeline.cli.standing import StandingVerdict
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

if TYPE_CHECKING:
    from pipeline.run.performed import Report


class RunRecord:
    """The events of tasks, the reports of workers, and the cache usage by kind of action.

    `jobs` is the number given to doit, or 0.
    """

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
        """Add the final event of a task.

        Tasks that were up to date are only counted in the event stream: in a small run, most are.
        """
        self.events.append(event)
        stream = self.stream(workspace)
        if event.outcome != "up-to-date":
            facts = describe_event(event, (*ENDING, "stage"))
            stream.write("action-ended", event, **facts)

    def count(self, kind: str, usage: Usage) -> None:
        self.usage.setdefault(kind, Usage()).add(usage)

    def count_spared(self, store: Store, action: Action) -> None:
        """Count as hits the methods and quantizations that were not looked up.

        They were skipped because the package or method made from them was in the store. Only those
        that this store has are counted.
        """
        for kind in ("compile", "quantize"):
            for digest in getattr(action.inputs, f"{kind}s", {}).values():
                entry = store.read_entry(store.action_path(digest), digest)
                if entry is not None:
                    self.count(kind, Usage(hits=1, saved=entry.seconds))

    def close(
        self,
        plan: Plan,
        reporter: Any,
        standing: Sequence[StandingVerdict],
        interrupted: bool,
    ) -> None:
        """Write the records of a run, print its summary, and clean up.

        Args:
            reporter: doit's, which need not be ours.
            standing: the verdicts on the packages of this run.
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
            with suppress(OSError):  # the terminal was closed
                reporter.summarize(plan, self.events, standing, remote)
        # After Ctrl-C too: the earlier pages may be about other packages.
        if changed:
            _write_overview(plan, reporter)
        self.stream(plan.workspace).close(
            interrupted=interrupted,
            idle_seconds=round(self.idle_seconds, 3),
            outcomes=Counter(event.outcome for event in self.events),
            caches=usage_record(self.usage, moved),
            remote=remote or None,
        )

    def _caches(self, plan: Plan, moved: Moved) -> dict[str, Any]:
        """Return the cache usage of this run and of all runs of this store."""
        store = plan.workspace.store
        return {
            "run": usage_record(self.usage, moved),
            "store": usage_record(read_usage(store), read_moved(store)),
        }

    def _clean_up(self, plan: Plan, moved: Moved) -> None:
        """After a run that changed something, add its counts to the store's and evict.

        Also remove temporary files that killed runs left behind.
        """
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
        """Return the remote tier's counts, summed over all processes, and what went wrong there.

        A process that gave the remote up says more about that than one that had a single error.
        """
        if (remote := plan.workspace.store.remote) is None:
            return {}
        total, problem = remote.counts, remote.problem
        for counts, cause in filter(None, (report.remote for report in self.reports)):
            total += counts
            problem = max(problem, cause, key=len)
        believes_all = remote.settings.believes_all
        return {**vars(total), "believes_all": believes_all, "problem": problem}


def _complete(plan: Plan, events: list[Event]) -> Iterator[Event]:
    """Yield the events, and further ones for methods that doit didn't visit.

    These are the methods of packages that were current as a whole, and the quantizations of methods
    that were current.
    """
    yield from events
    visited: set[tuple[str, str | None, str | None]] = set()
    units: list[Event] = []  # compile events of units that doit visited
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
                # `_replace` would take three times as long, for possibly ten thousand methods.
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
    """Write the reports over all packages, and print their path if they are the first."""
    index = plan.workspace.build / "index.html"
    existed = index.exists()
    try:
        list(call_all("write_overview", plan.workspace, plan.configs.packages))
        is_first = index.exists() and not existed
        if is_first and hasattr(reporter, "summarize"):
            reporter.write(f"report: {index.relative_to(plan.workspace.root)}\n")
    except Exception as error:  # for example an edited record; the run's outcome stays
        text = one_line(describe_error(error))
        reporter.write(f"the reports over all packages could not be written: {text}\n")
