"""What people see: progress while actions run, failures at once, a table at the end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from doit.reporter import ConsoleReporter

from pipeline.cli.columns import columns
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.report.run_record import Outcome
from pipeline.run.steps import step_of
from pipeline.run.worker import Report
from pipeline.store.sizes import human_size

Tell = Callable[[Action, Report], None]
Steps = Callable[[Action], tuple[int, int] | None]
_SECONDS_BETWEEN_LOOKS = 0.2


class Reporter(ConsoleReporter):
    """doit's console reporter, except that tasks of ours are told by `progress` and the table."""

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
    def progress(self, actions: Sequence[Action], steps: Steps) -> Iterator[Tell]:
        """Yields the function to call with each report."""
        with progress_on(self.outstream, actions, steps) as tell:
            yield tell

    def summarize(self, plan: Plan, outcomes: Sequence[Outcome], remote: Mapping[str, Any]) -> None:
        self._summarize(plan, outcomes)
        if any(remote.values()):  # it was asked something, or can't be
            self.write(f"{_of_remote(remote)}\n")

    def _summarize(self, plan: Plan, outcomes: Sequence[Outcome]) -> None:
        if all(outcome.outcome == "up-to-date" for outcome in outcomes):
            packages = {outcome.package for outcome in outcomes if outcome.package}
            self.write(f"up to date: {_count(len(packages), 'package')}\n")
            return
        rows = [HEADINGS, *_rows(plan, outcomes)]
        for line in ("", *columns(rows, right=range(4, len(HEADINGS)), rule=True)):
            self.write(f"{line}\n")
        self.write(f"{_totals(outcomes)}\n")


def _ours(task: Any) -> bool:
    return step_of(task) is not None or not task.actions


def _is_command(task: Any) -> bool:
    return bool((task.meta or {}).get("command"))


@contextmanager
def progress_on(stream: Any, actions: Sequence[Action], steps: Steps) -> Iterator[Tell]:
    """Yields the function to call with each report: a bar on a terminal, and one for each action
    that calibrates, else plain lines."""

    def line(action: Action, report: Report) -> None:
        result = "lost" if report.missing else "failed" if report.error else "built"
        stream.write(f"{result:<8} {action.title:<44} {report.seconds:6.1f} s\n")
        stream.flush()

    if stream.isatty():
        with _bar(actions, steps) as tell:
            yield tell
    else:
        yield line


@contextmanager
def _bar(actions: Sequence[Action], steps: Steps) -> Iterator[Tell]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, transient=True) as progress:
        bar = progress.add_task(" ".join(sorted({a.kind for a in actions})), total=len(actions))

        def tell(action: Action, report: Report) -> None:
            result = "[red]failed[/red]" if report.error else "built"
            result = "lost" if report.missing else result
            progress.console.print(
                f"{result} {action.title} [dim]{report.seconds:.1f} s[/dim]", highlight=False
            )
            progress.advance(bar)

        with _calibrations(actions, steps, progress):
            yield tell


@contextmanager
def _calibrations(actions: Sequence[Action], steps: Steps, progress: Any) -> Iterator[None]:
    """Looks from time to time how far each calibration is, and shows a bar while it lasts."""
    bars: dict[str, Any] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(_SECONDS_BETWEEN_LOOKS):
            for action in (action for action in actions if action.kind == "quantize"):
                told = steps(action)
                if told is None:
                    if action.digest in bars:
                        progress.remove_task(bars.pop(action.digest))
                    continue
                if action.digest not in bars:
                    title = action.title.replace("quantize", "calibrate", 1)
                    bars[action.digest] = progress.add_task(title, total=told[1])
                progress.update(bars[action.digest], completed=told[0])

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


HEADINGS = ("package", "method", "lower", "validate", "delegated", "size", "max error", "seconds")


def _rows(plan: Plan, outcomes: Sequence[Outcome]) -> Iterator[tuple[str, ...]]:
    """For each package a row of its own, then one for each compile unit."""
    for package in sorted({str(outcome.package) for outcome in outcomes if outcome.package}):
        own = [outcome for outcome in outcomes if outcome.package == package]
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


def _of_remote(told: Mapping[str, Any]) -> str:
    """What came of the remote tier, on one line; what is not worth a word is left out."""
    words = [
        f"{told['hits']} fetched ({human_size(told['bytes_fetched'])})",
        f"{told['pushed']} pushed ({human_size(told['bytes_pushed'])})",
        f"{told['misses']} not there",
        f"{told['unsigned']} without a trusted signature, ignored" if told["unsigned"] else "",
        f"{told['corrupt']} corrupt, refused" if told["corrupt"] else "",
        f"{told['errors']} errors" if told["errors"] else "",
        told["problem"],
    ]
    return f"remote: {'; '.join(word for word in words if word)}"


def _totals(outcomes: Sequence[Outcome]) -> str:
    counts = {
        result: sum(outcome.outcome == result for outcome in outcomes)
        for result in ("built", "hit", "up-to-date", "failed", "not-run")
    }
    told = ", ".join(f"{count} {result}" for result, count in counts.items() if count)
    return f"{_count(len(outcomes), 'action')}: {told}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
