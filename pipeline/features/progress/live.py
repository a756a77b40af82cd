"""The live view of a run on a terminal."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

from pipeline.cli.columns import cut_middle
from pipeline.cli.terminal import escaping, unguarded
from pipeline.features.progress.ahead import drop_settled, find_tasks, place_of
from pipeline.features.progress.long_actions import report_long_actions
from pipeline.plan.actions import Action
from pipeline.plan.tasks import ActionTask
from pipeline.report.events import Event, outcome_word
from pipeline.run.action_status import ActionStatus
from pipeline.run.batch import Outlook, Show
from pipeline.store.visible import one_line

_SECONDS_BETWEEN_LOOKS = 0.2
_LEAST_NAME = 18
_STYLES = {"failed": "red", "built": "green", "refit": "green"}


class Tally:
    """The progress of a run: the actions that have ended or are running, and the tasks still ahead.

    Actions may be added while the tally is read. An action that is run again is listed twice.
    """

    def __init__(self, actions: Sequence[Action], outlook: Outlook) -> None:
        self.actions = actions
        self.outlook = outlook
        self.tasks = find_tasks(outlook.selected)
        self.began: float = time.monotonic()
        self.finished: int = 0
        self.failed: int = 0
        self.ended: Counter[str] = Counter()  # number of ends, by title
        self.since: dict[str, float] = {}

    def running(self, now: float) -> list[tuple[Action, ActionStatus, float]]:
        """Return the running actions, with their status and the seconds since first seen."""
        running = []
        begun = set()
        for action in self._not_ended():
            status = self.outlook.find_status(action)
            if status is not None:
                begun.add(action.title)
                seconds = now - self.since.setdefault(action.title, now)
                running.append((action, status, seconds))
        for title in self.since.keys() - begun:
            del self.since[title]
        return running

    def _not_ended(self) -> Iterator[Action]:
        ended = self.ended.copy()
        for action in list(self.actions):
            if ended[action.title]:
                ended[action.title] -= 1
            else:
                yield action

    def ahead(self) -> list[ActionTask]:
        """Return the tasks not yet given to a worker, and not settled without one."""
        return drop_settled(self.tasks, list(self.outlook.events), list(self.actions))

    def count(self, event: Event) -> None:
        self.finished += 1
        self.failed += event.outcome == "failed"
        self.ended[event.title] += 1

    def counts(self) -> tuple[int, int]:
        """Return how many actions are done and how many there are.

        Actions that were up to date or cached are among those done.
        """
        given = {place_of(action) for action in list(self.actions)}
        elsewhere = {place_of(event) for event in list(self.outlook.events)} - given
        done = self.finished + len(elsewhere)
        return done, len(self.actions) + len(elsewhere) + len(self.ahead())

    def remaining(
        self, running: Sequence[tuple[Action, ActionStatus, float]]
    ) -> float | None:
        """Return roughly how many seconds remain, or None if the store knows no time for some kind.

        An action that the store doesn't know is expected to take the mean time of its kind. Tasks
        not yet given to a worker may turn out to be cached.
        """
        spent = {action.title: seconds for action, _, seconds in running}
        remaining: list[Action | ActionTask] = [*self._not_ended(), *self.ahead()]
        usual = self._usual_seconds()
        total = 0.0
        longest: dict[str, dict[str, float]] = {}  # seconds by package and kind
        for action in remaining:
            expected = self.outlook.recall_seconds(action)
            if expected is None:
                expected = usual.get(action.kind)
            if expected is None:
                return None
            seconds = max(expected - spent.get(action.title, 0.0), 0.0)
            total += seconds
            kinds = longest.setdefault(str(action.package or action.model), {})
            kinds[action.kind] = max(seconds, kinds.get(action.kind, 0.0))
        if not longest:
            return None
        chains = [sum(kinds.values()) for kinds in longest.values()]
        return max(total / max(self.outlook.jobs, 1), *chains)

    def _usual_seconds(self) -> dict[str, float]:
        """Return the mean seconds per kind, over the run's actions that the store knows."""
        kind_to_seconds: dict[str, list[float]] = {}
        known: list[Action | ActionTask] = [*self.tasks.values(), *self.actions]
        for task in known:
            seconds = self.outlook.recall_seconds(task)
            if seconds is not None:
                kind_to_seconds.setdefault(task.kind, []).append(seconds)
        return {kind: fmean(times) for kind, times in kind_to_seconds.items()}


@contextmanager
def show_progress(
    stream: Any, actions: Sequence[Action], outlook: Outlook, show_line: Show
) -> Iterator[Show]:
    """Show progress as the stream allows; `show_line` writes the line of an ended action."""
    if is_live(stream):
        with _draw_live(stream, actions, outlook) as show:
            yield show
    else:
        with report_long_actions(stream, actions, outlook, show_line) as show:
            yield show


def is_live(stream: Any) -> bool:
    """Return whether a stream is a terminal on which lines can be redrawn.

    CI logs are not, even though some claim to be terminals.
    """
    dumb = os.environ.get("TERM", "") in ("", "dumb")
    return bool(stream.isatty()) and not dumb and not os.environ.get("CI")


@contextmanager
def _draw_live(
    stream: Any, actions: Sequence[Action], outlook: Outlook
) -> Iterator[Show]:
    """Yield the function to call with each event; the view is redrawn in the meantime."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=unguarded(stream), highlight=False)
    tally = Tally(actions, outlook)

    def draw() -> Any:
        lines = _lines(tally, console.width)
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")

    with Live(draw(), console=console, transient=True, auto_refresh=False) as live:
        lock = threading.Lock()
        over = threading.Event()

        def show(event: Event) -> None:
            outcome = (
                f"{outcome_word(event.outcome):<8}",
                _STYLES.get(event.outcome, ""),
            )
            seconds = f"{event.seconds:.1f} s"
            room = console.width - len(outcome[0]) - len(seconds) - 2
            title = cut_middle(one_line(event.title), max(room, _LEAST_NAME))
            with lock:
                tally.count(event)
                live.update(draw())  # drawn by the next print
                line = Text.assemble(outcome, f" {title} ", (seconds, "dim"))
                console.print(line, no_wrap=True, overflow="ellipsis")

        def look() -> None:
            while not over.wait(_SECONDS_BETWEEN_LOOKS):
                with lock:
                    live.update(draw(), refresh=True)

        def write(text: str) -> None:  # such as a failure: printed above the live view
            with lock:
                console.print(Text(text), end="", soft_wrap=True)

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            with _redirected(stream, write):
                yield show
        finally:
            over.set()
            looking.join()


@contextmanager
def _redirected(stream: Any, write: Callable[[str], object]) -> Iterator[None]:
    """Within the block, pass text written to a stream to `write`, escaped as before."""
    before = stream.write
    stream.write = escaping(write)
    try:
        yield
    finally:
        stream.write = before


def _lines(tally: Tally, width: int) -> Iterator[str]:
    """Yield the line of the run, then a line for each running action.

    The most important parts come first, because a narrow terminal cuts off the last ones.
    """
    now = time.monotonic()
    running = tally.running(now)
    done, total = tally.counts()
    workers = f"{len(running)} of {tally.outlook.jobs} workers busy"
    failed = ""
    if tally.failed:
        failed = f", {tally.failed} failed"
    remaining = tally.remaining(running)
    if remaining is None:
        time_left = ""
    else:
        time_left = f", about {clock(remaining)} left"
    counts = f"{done} of {total} done{failed}"
    line = f"{counts} | {clock(now - tally.began)}{time_left}"
    whole = f"{line} | {workers}"
    yield whole if len(whole) <= width else line
    for action, status, seconds in running:
        expected = tally.outlook.recall_seconds(action)
        if expected is None:
            of = ""
        else:
            of = f" of about {clock(expected)}"
        steps = ""
        if status.total > 1:
            steps = f" {status.done}/{status.total}"
        where = ""
        if status.host:
            where = f" on {one_line(status.host)}"
        name = cut_middle(one_line(action.title), max(width - len(of) - 9, _LEAST_NAME))
        yield f"  {name}  {clock(seconds)}{of}  {one_line(status.stage)}{steps}{where}"


def clock(seconds: float) -> str:
    """Format seconds as minutes and seconds, with hours if there are any."""
    minutes, full_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{full_seconds:02}"
    return f"{minutes}:{full_seconds:02}"
