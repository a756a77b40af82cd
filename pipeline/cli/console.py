"""The console: progress while actions run, failures at once, a table at the end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from doit.reporter import ConsoleReporter

from pipeline.cli.columns import columns
from pipeline.cli.up_to_date import action_task
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.report.events import Event
from pipeline.run.batch import Show, Steps
from pipeline.store.errors import plural
from pipeline.store.sizes import human_size

_SECONDS_BETWEEN_LOOKS = 0.2


class Reporter(ConsoleReporter):
    """doit's console reporter, except that `progress` and the table show tasks of ours."""

    desc = "packages: progress, failures, and a table at the end"

    def execute_task(self, task: Any) -> None:
        if not _ours(task) and not _is_command(task):
            super().execute_task(task)

    def skip_uptodate(self, task: Any) -> None:
        if not _ours(task) and task.actions:
            super().skip_uptodate(task)

    def add_failure(self, task: Any, fail: Any) -> None:
        if not _ours(task) and not _is_command(task):
            super().add_failure(task, fail)
            return
        self.write(f"{fail.message}\n")
        self.outstream.flush()

    @contextmanager
    def progress(self, actions: Sequence[Action], steps: Steps) -> Iterator[Show]:
        """Yields the function to call with each report."""
        with progress_on(self.outstream, actions, steps) as show:
            yield show

    def summarize(self, plan: Plan, events: Sequence[Event], remote: Mapping[str, Any]) -> None:
        self._summarize(plan, events)
        if any(remote.values()):  # it was asked something, or can't be
            self.write(f"{_remote_line(remote)}\n")

    def _summarize(self, plan: Plan, events: Sequence[Event]) -> None:
        if all(event.outcome == "up-to-date" for event in events):
            packages = {event.package for event in events if event.package}
            self.write(f"up to date: {plural(len(packages), 'package')}\n")
            return
        rows = [HEADINGS, *_rows(plan, events)]
        for line in ("", *columns(rows, right=range(4, len(HEADINGS)), rule=True)):
            self.write(f"{line}\n")
        self.write(f"{_totals(events)}\n")


def _ours(task: Any) -> bool:
    return action_task(task) is not None or not task.actions


def _is_command(task: Any) -> bool:
    return bool((task.meta or {}).get("command"))


@contextmanager
def progress_on(stream: Any, actions: Sequence[Action], steps: Steps) -> Iterator[Show]:
    """Yields the function to call with each report: a bar on a terminal, and one for each action
    that calibrates, else plain lines."""

    def line(event: Event) -> None:
        stream.write(f"{event.outcome:<8} {event.title:<44} {event.seconds:6.1f} s\n")
        stream.flush()

    if stream.isatty():
        with _bar(actions, steps) as show:
            yield show
    else:
        yield line


@contextmanager
def _bar(actions: Sequence[Action], steps: Steps) -> Iterator[Show]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, transient=True) as progress:
        bar = progress.add_task(" ".join(sorted({a.kind for a in actions})), total=len(actions))

        def show(event: Event) -> None:
            failed = event.outcome == "failed"
            result = "[red]failed[/red]" if failed else event.outcome
            progress.console.print(
                f"{result} {event.title} [dim]{event.seconds:.1f} s[/dim]", highlight=False
            )
            progress.advance(bar)

        with _calibrations(actions, steps, progress):
            yield show


@contextmanager
def _calibrations(actions: Sequence[Action], steps: Steps, progress: Any) -> Iterator[None]:
    """Look from time to time how far each calibration is, and show a bar while it lasts."""
    bars: dict[str, Any] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(_SECONDS_BETWEEN_LOOKS):
            for action in (action for action in actions if action.kind == "quantize"):
                done = steps(action)
                if done is None:
                    if action.digest in bars:
                        progress.remove_task(bars.pop(action.digest))
                    continue
                if action.digest not in bars:
                    title = action.title.replace("quantize", "calibrate", 1)
                    bars[action.digest] = progress.add_task(title, total=done[1])
                progress.update(bars[action.digest], completed=done[0])

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


HEADINGS = ("package", "method", "lower", "validate", "delegated", "size", "max error", "seconds")


def _rows(plan: Plan, events: Sequence[Event]) -> Iterator[tuple[str, ...]]:
    """Yield for each package a row of its own, then one for each compile unit."""
    for package in sorted({str(event.package) for event in events if event.package}):
        own = [event for event in events if event.package == package]
        link = next((o for o in own if o.kind == "link"), None)
        checked = next((o for o in own if o.kind == "validate"), None)
        manifest = _read(plan, package, "manifest.json")
        validation = _read(plan, package, "report.json")
        errors = {m["method"]: _error(m) for m in validation.get("methods", ())}
        spent = sum(o.seconds for o in own if o.kind not in ("compile", "quantize"))
        size = sum(file["size"] for file in manifest.get("files", {}).values())
        linked = link is not None and link.outcome in ("built", "hit", "up-to-date")
        yield (
            package,
            "",
            link.outcome if link else "",
            checked.outcome if checked else "",
            "",
            human_size(size) if linked else "",
            "",
            f"{spent:.1f}",
        )
        quantizing = {str(o.method): o.seconds for o in own if o.kind == "quantize"}
        for unit in sorted((o for o in own if o.kind == "compile"), key=lambda o: str(o.method)):
            for method in str(unit.method).split("+"):
                delegated = manifest.get("methods", {}).get(method, {}).get("delegation", {})
                yield (
                    "",
                    method,
                    unit.outcome,
                    "",
                    _percentage(delegated) if linked else "",
                    "",
                    errors.get(method, "") if linked else "",
                    f"{unit.seconds + quantizing.get(method, 0.0):.1f}",
                )


def _error(method: dict[str, Any]) -> str:
    if method.get("not_run"):
        return "not run"
    return f"{method['max_abs']:.1e}" if isinstance(method["max_abs"], float) else ""


def _read(plan: Plan, package: str, name: str) -> dict[str, Any]:
    try:
        return json.loads((plan.workspace.package(package) / name).read_bytes())
    except (OSError, ValueError):
        return {}


def _percentage(delegation: dict[str, Any]) -> str:
    if not delegation.get("nodes"):
        return ""
    kernels = sum(sum(own.values()) for own in delegation.get("kernels", {}).values())
    return f"{100 * (delegation['delegated_nodes'] + kernels) / delegation['nodes']:.0f} %"


def _remote_line(counts: Mapping[str, Any]) -> str:
    """Describe in one line what came of the remote tier, without what did not happen."""
    words = [
        f"{counts['hits']} fetched ({human_size(counts['bytes_fetched'])})",
        f"{counts['pushed']} pushed ({human_size(counts['bytes_pushed'])})",
        f"{counts['misses']} not there",
        f"{counts['unsigned']} without a trusted signature, ignored" if counts["unsigned"] else "",
        f"{counts['corrupt']} corrupt, refused" if counts["corrupt"] else "",
        f"{counts['errors']} errors" if counts["errors"] else "",
        counts["problem"],
    ]
    return f"remote: {'; '.join(word for word in words if word)}"


def _totals(events: Sequence[Event]) -> str:
    counts = {
        result: sum(event.outcome == result for event in events)
        for result in ("built", "hit", "up-to-date", "failed", "not-run")
    }
    counted = ", ".join(f"{count} {result}" for result, count in counts.items() if count)
    return f"{plural(len(events), 'action')}: {counted}"
