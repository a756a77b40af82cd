"""The console: progress while actions run, failures at once, a table at the end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from doit.exceptions import TaskError
from doit.reporter import ConsoleReporter

from pipeline.cli.columns import columns
from pipeline.cli.doit_link import is_foreign
from pipeline.cli.terminal import guard, unguarded
from pipeline.plan.actions import Action
from pipeline.plan.patterns import find_unknown_names, find_unwritten
from pipeline.plan.plan import Plan
from pipeline.report.events import Event
from pipeline.run.batch import Show, Steps
from pipeline.store.errors import plural
from pipeline.store.files import REPORT
from pipeline.store.names import shorten_name
from pipeline.store.sizes import human_size
from pipeline.store.visible import one_line

_SECONDS_BETWEEN_LOOKS = 0.2


class Reporter(ConsoleReporter):
    """doit's console reporter, except that `progress` and the table show tasks of ours."""

    def __init__(self, outstream: Any, options: Any) -> None:
        super().__init__(guard(outstream), options)

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
            self.write(f"{bug}{fail.message}\n")
            self.outstream.flush()

    def progress(self, actions: Sequence[Action], steps: Steps) -> AbstractContextManager[Show]:
        """Return a context with the function to call with each event."""
        return progress_on(self.outstream, actions, steps)

    def summarize(self, plan: Plan, events: Sequence[Event], remote: Mapping[str, Any]) -> None:
        """Write the table of a run, or a line where all was up to date, and what came of the
        remote tier."""
        if all(event.outcome == "up-to-date" for event in events):
            packages = {event.package for event in events if event.package}
            lines = [f"up to date: {plural(len(packages), 'package')}"]
        else:
            rows = [tuple(row.values()) for row in _rows(plan, events)]
            table = columns([HEADINGS, *rows], right=range(4, len(HEADINGS)), rule=True)
            counts = Counter[str](event.outcome for event in events)
            known = ("built", "refit", "hit", "up-to-date", "failed", "not-run")
            counted = ", ".join(f"{counts[each]} {each}" for each in known if counts[each])
            lines = ["", *table, *_manifest_lines(plan, events), *_left_out_lines(plan, events)]
            lines.append(f"{plural(len(events), 'action')}: {counted}")
        if any(remote.values()):  # it was asked something, can't be, or everyone is believed
            lines.append(_remote_line(remote))
        self.write("".join(f"{line}\n" for line in lines))


@contextmanager
def progress_on(stream: Any, actions: Sequence[Action], steps: Steps) -> Iterator[Show]:
    """Yield the function to call with each event: on a terminal it moves a bar, beside which one
    stands for each action that calibrates; else it writes plain lines."""

    def line(event: Event) -> None:
        title = shorten_name(one_line(event.title))
        stream.write(f"{event.outcome:<8} {title:<44} {event.seconds:6.1f} s\n")
        stream.flush()

    if stream.isatty():
        with _bars(stream, actions, steps) as show:
            yield show
    else:
        yield line


@contextmanager
def _bars(stream: Any, actions: Sequence[Action], steps: Steps) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    title = TextColumn("{task.description}", markup=False)
    parts = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), title)
    console = Console(file=unguarded(stream))
    with Progress(*parts, transient=True, console=console) as progress:
        bar = progress.add_task(" ".join(sorted({a.kind for a in actions})), total=len(actions))

        def show(event: Event) -> None:
            outcome = (event.outcome, "red" if event.outcome == "failed" else "")
            title = shorten_name(one_line(event.title))
            console.print(Text.assemble(outcome, f" {title} ", (f"{event.seconds:.1f} s", "dim")))
            progress.advance(bar)

        over = threading.Event()
        looking = threading.Thread(
            target=_show_calibrations, args=(actions, steps, progress, over), daemon=True
        )
        looking.start()
        try:
            yield show
        finally:
            over.set()
            looking.join()


def _show_calibrations(
    actions: Sequence[Action], steps: Steps, progress: Any, over: threading.Event
) -> None:
    """Look from time to time how far each calibration is, and show a bar while it lasts."""
    calibrating = [action for action in actions if action.kind == "quantize"]
    titles = [one_line(a.title.replace("quantize", "calibrate", 1)) for a in calibrating]
    bars = [progress.add_task(title, start=False, visible=False) for title in titles]
    while bars and not over.wait(_SECONDS_BETWEEN_LOOKS):
        for action, bar in zip(calibrating, bars, strict=True):
            if done := steps(action):
                progress.start_task(bar)
                progress.update(bar, completed=done[0], total=done[1], visible=True)
            else:
                progress.update(bar, visible=False)


_DONE = ("built", "refit", "hit", "up-to-date")
HEADINGS = (
    "package", "method", "lower", "validate", "delegated", "size", "max error", "limit", "seconds",
)  # fmt: skip


def _rows(plan: Plan, events: Sequence[Event]) -> Iterator[dict[str, str]]:
    """Yield for each package a row of its own, then one for each method."""
    # This imports typing_extensions, which a no-op run does without.
    from pipeline.report.packages import outcome
    from pipeline.report.records import delegated_share, read_fitting, read_manifest

    blank = dict.fromkeys(HEADINGS, "")
    for package in sorted({str(event.package) for event in events if event.package}):
        own = [event for event in events if event.package == package]
        outcomes = {event.kind: event.outcome for event in reversed(own)}
        manifest = read_manifest(plan.workspace, package) or {}
        report = read_fitting(plan.workspace.package(package) / REPORT) or {}
        spent = sum(event.seconds for event in own if event.kind not in ("compile", "quantize"))
        size = sum(file["size"] for file in manifest.get("files", {}).values())
        linked = outcomes.get("link") in _DONE
        validated = outcomes.get("validate", "")
        if report and validated in _DONE and (verdict := outcome(report)) != "passed":
            validated = verdict
        yield blank | {
            "package": package,
            "lower": outcomes.get("link", ""),
            "validate": validated,
            "size": human_size(size) if linked else "",
            "seconds": f"{spent:.1f}",
        }
        judged = {method["method"]: method for method in report.get("methods", ())}
        quantizing = {str(event.method): event.seconds for event in own if event.kind == "quantize"}
        units = [event for event in own if event.kind == "compile"]
        for unit in sorted(units, key=lambda unit: str(unit.method)):
            for method in str(unit.method).split("+"):
                seconds = unit.seconds + quantizing.get(method, 0.0)
                row = {"method": method, "lower": unit.outcome, "seconds": f"{seconds:.1f}"}
                if linked:
                    counts = manifest.get("methods", {}).get(method, {}).get("delegation")
                    share = delegated_share([counts] if counts else [])
                    row["delegated"] = "" if share is None else f"{100 * share:.0f} %"
                    if method in judged:
                        row["max error"] = _error(judged[method])
                        row["limit"] = _limit(judged[method])
                yield blank | row


def _manifest_lines(plan: Plan, events: Sequence[Event]) -> Iterator[str]:
    """Yield what the packages of this run are not, though their configs may mean it."""
    from pipeline.report.records import read_manifest

    linked = {str(e.package) for e in events if e.kind == "link" and e.outcome in _DONE}
    for package in sorted(linked):
        if manifest := read_manifest(plan.workspace, package):
            yield from _narrowed(package, manifest["methods"])
            unknown = find_unknown_names(manifest["methods"])
            for what in (*unknown, *find_unwritten(manifest["emit"], manifest["files"])):
                yield one_line(f"{package}: {what}")


def _narrowed(package: str, methods: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each size that a package is lowered for less of than its source takes."""
    from pipeline.report.formatting import size_range

    for method, facts in sorted(methods.items()):
        keeps = facts["lowering"].get("edge", {}).get("keep_ranges")
        for each in facts.get("narrowed", ()):
            by = " in ".join(filter(None, (each["operator"], each["module"])))
            yield one_line(
                f"{package}/{method}: {each['size']} is lowered for "
                f"{size_range(each['lowered'])}, its source takes {size_range(each['source'])}"
                + (f"; narrowed by {by}" if by else "")
                + ("" if keeps else "; `edge: {keep_ranges: true}` may keep them")
            )


def _error(method: Mapping[str, Any]) -> str:
    if method["not_run"] and method["ok"]:
        return "not run"
    if not method["runs"]:
        return ""  # it failed before it could
    return f"{method['max_abs']:.1e}" if isinstance(method["max_abs"], float) else method["max_abs"]


def _limit(method: Mapping[str, Any]) -> str:
    """Return the limit on a method's error, and what it follows."""
    limits, source = method["limits"], method.get("limits_from", "")
    if not method["runs"]:
        return ""
    if limits.get("atol") is not None:
        return f"{limits['atol']:.1e} {source}".strip()
    least = limits.get("min_sqnr")
    return source if least is None else f"{least:.1f} dB {source}".strip()


def _left_out_lines(plan: Plan, events: Sequence[Event]) -> Iterator[str]:
    """Yield a line for each package whose validation was cut short."""
    from pipeline.report.packages import describe_left_out
    from pipeline.report.records import read_fitting

    for package in sorted({str(each.package) for each in events if each.kind == "validate"}):
        report = read_fitting(plan.workspace.package(package) / REPORT)
        if report and (left_out := describe_left_out(report)):
            yield f"{package}: {left_out}"


def _remote_line(counts: Mapping[str, Any]) -> str:
    """Describe in one line what came of the remote tier, without what did not happen."""
    words = [
        "believed without signatures (remote_trust)" if counts["believes_all"] else "",
        f"{counts['hits']} fetched ({human_size(counts['bytes_fetched'])})",
        f"{counts['pushed']} pushed ({human_size(counts['bytes_pushed'])})",
        f"{counts['misses']} not there",
        f"{counts['unsigned']} without a trusted signature, ignored" if counts["unsigned"] else "",
        f"{counts['corrupt']} corrupt, refused" if counts["corrupt"] else "",
        f"{counts['errors']} errors" if counts["errors"] else "",
        one_line(counts["problem"]),
    ]
    return f"remote: {'; '.join(filter(None, words))}"
