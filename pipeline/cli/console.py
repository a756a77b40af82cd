"""The console: progress while actions run, failures as they happen, and a summary of the run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from doit.exceptions import TaskError
from doit.reporter import ConsoleReporter

from pipeline.cli.doit_link import is_foreign
from pipeline.cli.standing import StandingVerdict, describe_packages, describe_standing
from pipeline.cli.terminal import guard
from pipeline.moments import call_all, show_error
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.plan.remarks import find_remarks
from pipeline.report.events import INTERRUPTED, Event, outcome_word
from pipeline.run.install import find_orphans
from pipeline.store.errors import listed, plural
from pipeline.store.places import describe_remedy
from pipeline.store.store import Store
from pipeline.store.visible import one_line

if TYPE_CHECKING:
    from pipeline.run.batch import Outlook, Show

_PAGE = "report.html"
_CONFIG = r"partition_configs/[^:]+(:\d+)?: "  # prefix of a config error
_OUTCOMES = ("built", "refit", "hit", "up-to-date", "failed", "not-run")


class Reporter(ConsoleReporter):
    """doit's console reporter, except that progress and a table replace the lines of our tasks."""

    def __init__(self, outstream: Any, options: Any) -> None:
        super().__init__(guard(outstream), options)
        self.verbose = False  # whether the table has rows for methods
        self.methods_of: tuple[str, ...] = ()  # or else the packages that have them

    desc = "packages: progress, failures, and a table at the end"

    def execute_task(self, task: Any) -> None:
        if is_foreign(task):
            super().execute_task(task)

    def skip_uptodate(self, task: Any) -> None:
        if is_foreign(task):
            super().skip_uptodate(task)

    def add_failure(self, task: Any, fail: Any) -> None:
        if is_foreign(task):
            super().add_failure(task, fail)
        else:
            bug = "".join(fail.traceback) if isinstance(fail, TaskError) else ""
            if text := f"{bug}{fail.message}":
                self.write(f"{text}\n")
            self.outstream.flush()

    def warn(self, warning: str) -> None:
        """Print a warning while actions run."""
        self.write(f"warning: {show_error(one_line(warning), 'warning')}\n")
        self.outstream.flush()

    def progress(
        self, actions: Sequence[Action], outlook: Outlook
    ) -> AbstractContextManager[Show]:
        """Return a context that yields the callback for events."""
        from pipeline.cli.progress import progress_on  # not needed by a no-op run

        return progress_on(self.outstream, actions, outlook)

    def summarize(
        self,
        plan: Plan,
        events: Sequence[Event],
        standing: Sequence[StandingVerdict],
        remote: Mapping[str, Any],
    ) -> None:
        """Print the summary of a run.

        It consists of the features' summaries and the failures, or one line if everything was up to
        date; the current verdicts; and statistics of the remote tier.
        """
        if all(event.outcome == "up-to-date" for event in events):
            packages = {event.package for event in events if event.package}
            lines = list(describe_packages(len(packages), standing))
            if not packages:  # `doit export` alone
                lines = [f"up to date: {plural(len(events), 'model')}"]
        else:
            from pipeline.cli.progress import terminal_width

            shown = None if self.verbose else self.methods_of
            width = terminal_width(self.outstream)
            lines = [""]
            for summary in call_all("describe_run", plan, events, shown, width):
                lines += summary
            counts = Counter[str](event.outcome for event in events)
            counted = ", ".join(
                f"{counts[outcome]} {outcome_word(outcome)}"
                for outcome in _OUTCOMES
                if counts[outcome]
            )
            lines.append(f"{plural(len(events), 'action')}: {counted}")
            lines += describe_failures(plan, events)
            if any(event.reason == INTERRUPTED for event in events):
                lines.append("interrupted; finished work is cached")
        lines += describe_standing(standing)
        lines += _orphan_lines(plan)
        lines += _remark_lines(plan)
        lines += _overflow_lines(plan.workspace.store)
        tier = plan.workspace.store.remote
        if tier is not None and (line := tier.describe(remote)):
            lines.append(line)
        self.write("".join(f"{line}\n" for line in lines))


def _overflow_lines(store: Store) -> Iterator[str]:
    """Yield a warning if the store could not be written and results went to the overflow."""
    if why := store.why_overflow():
        yield describe_remedy(store.root, f"can't be written ({one_line(why)})")
        yield f"  the results of this run are in {store.overflow}, for this workspace only"


def describe_failures(plan: Plan, events: Sequence[Event]) -> Iterator[str]:
    """Yield a line for each failure of a run: what failed, in which stage, and the file to open.

    The reason was printed when the failure happened. If several packages fail for the same reason,
    such as a mistake in a config that they extend, they share a line.
    """
    failures: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        if event.outcome == "failed":
            why = re.sub(_CONFIG, "", event.error.partition("\n")[0], count=1)
            failures.setdefault((why, _file_to_open(plan, event)), []).append(event)
    if failures:
        yield ""
        yield "failed, for the reasons above:"
    for (_, place), same_failures in failures.items():
        first = same_failures[0]
        stage = f" in stage '{first.stage}'" if first.stage and first.log else ""
        titles = listed([one_line(event.title) for event in same_failures], 3)
        file = f": {one_line(place)}" if place else ""
        yield f"  {titles}{stage}{file}"


def _file_to_open(plan: Plan, event: Event) -> str:
    """Return the report of a failed validation, or else the action's log, or ""."""
    if event.kind == "validate" and event.package and event.log:
        page = plan.workspace.package(event.package) / _PAGE
        recorded = plan.workspace.state(event.package).get("validate", {})
        if recorded.get("ok") is False and not event.stage and page.is_file():
            return str(page.relative_to(plan.workspace.root))
    return event.log


def _orphan_lines(plan: Plan) -> Iterator[str]:
    """Yield a line about packages in `build/` that no config makes any more."""
    if orphans := find_orphans(plan.workspace, plan.configs.packages):
        names, build = listed(orphans, 5), plan.workspace.build.name
        remedy = "`doit clean --orphans` removes it"
        yield one_line(
            f"{build}/ has stale output that no config makes: {names}; {remedy}"
        )


def _remark_lines(plan: Plan) -> Iterator[str]:
    """Yield warnings about files in the workspace that are ignored or probably a mistake."""
    for remark in find_remarks(plan):
        yield f"warning: {show_error(str(remark), 'warning')}"
