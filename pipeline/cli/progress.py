"""Progress while actions run: a live view on a terminal, a line for each that ended elsewhere.

Rich is imported only for the live view, so neither a run with nothing to do nor a log pays for it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pipeline.cli.columns import cut_middle
from pipeline.cli.terminal import redirected, unguarded
from pipeline.plan.actions import Action
from pipeline.report.events import Event, outcome_word
from pipeline.run.action_status import ActionStatus
from pipeline.run.batch import Outlook, Show
from pipeline.store.names import shorten_name
from pipeline.store.visible import one_line

_SECONDS_BETWEEN_LOOKS = 0.2
_LEAST_NAME = 18
_STYLES = {"failed": "red", "built": "green", "refit": "green"}


@contextmanager
def progress_on(
    stream: Any, actions: Sequence[Action], outlook: Outlook
) -> Iterator[Show]:
    """Yield the function to call with each event."""

    def line(event: Event) -> None:
        title = shorten_name(one_line(event.title))
        stream.write(
            f"{outcome_word(event.outcome):<8} {title:<44} {event.seconds:6.1f} s\n"
        )
        stream.flush()

    if is_live(stream):
        with _live(stream, actions, outlook) as show:
            yield show
    else:
        yield line


def is_live(stream: Any) -> bool:
    """Tell whether a stream is a terminal on which lines can be redrawn. The logs of CI are not,
    though some say that they are a terminal."""
    dumb = os.environ.get("TERM", "") in ("", "dumb")
    return bool(stream.isatty()) and not dumb and not os.environ.get("CI")


class Tally:
    """The progress of a batch: which actions have ended, since when others are under way.

    More actions may be added while it is looked at; one that is run again is among them twice.
    """

    def __init__(self, actions: Sequence[Action], outlook: Outlook) -> None:
        self.actions = actions
        self.outlook = outlook
        self.began: float = time.monotonic()
        self.finished: int = 0
        self.failed: int = 0
        self.ended: Counter[str] = Counter()  # how often, by title
        self.since: dict[str, float] = {}

    def count(self, event: Event) -> None:
        self.finished += 1
        self.failed += event.outcome == "failed"
        self.ended[event.title] += 1

    def running(self, now: float) -> list[tuple[Action, ActionStatus, float]]:
        """Return the actions that are under way, with the seconds since they were first seen."""
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

    def remaining(
        self, running: Sequence[tuple[Action, ActionStatus, float]]
    ) -> float | None:
        """Return about how many seconds remain, None where the store knows nothing of an action
        that is to be done."""
        spent = {action.title: seconds for action, _, seconds in running}
        remaining = []
        for action in self._not_ended():
            expected = self.outlook.recall_seconds(action)
            if expected is None:
                return None
            remaining.append(max(expected - spent.get(action.title, 0.0), 0.0))
        if not remaining:
            return None
        return max(
            sum(remaining) / max(self.outlook.jobs, 1),
            *remaining,
        )


@contextmanager
def _live(stream: Any, actions: Sequence[Action], outlook: Outlook) -> Iterator[Show]:
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
                live.update(draw())  # which printing shows
                line = Text.assemble(
                    outcome,
                    f" {title} ",
                    (seconds, "dim"),
                )
                console.print(line, no_wrap=True, overflow="ellipsis")

        def look() -> None:
            while not over.wait(_SECONDS_BETWEEN_LOOKS):
                with lock:
                    live.update(draw(), refresh=True)

        def write(text: str) -> None:  # a failure, say: above what is drawn again
            with lock:
                console.print(Text(text), end="", soft_wrap=True)

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            with redirected(stream, write):
                yield show
        finally:
            over.set()
            looking.join()


def _lines(tally: Tally, width: int) -> Iterator[str]:
    """Yield the line of a batch, then one for each action under way, the most important parts
    first: a narrow terminal does without the last ones."""
    now = time.monotonic()
    running = tally.running(now)
    kinds = " ".join(sorted({action.kind for action, *_ in running})) or "actions"
    workers = f"{len(running)} of {tally.outlook.jobs} workers busy"
    failed = ""
    if tally.failed:
        failed = f", {tally.failed} failed"
    remaining = tally.remaining(running)
    if remaining is None:
        time_left = ""
    else:
        time_left = f", about {clock(remaining)} left"
    counts = f"{kinds}: {tally.finished} of {len(tally.actions)} done{failed}"
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
        name = cut_middle(
            one_line(action.title),
            max(width - len(of) - 9, _LEAST_NAME),
        )
        yield f"  {name}  {clock(seconds)}{of}  {one_line(status.stage)}{steps}{where}"


def clock(seconds: float) -> str:
    """Format seconds as minutes and seconds."""
    minutes, full_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{full_seconds:02}"
    return f"{minutes}:{full_seconds:02}"


def terminal_width(
    stream: Any, environment: Mapping[str, str] = os.environ
) -> int | None:
    """Return the columns of a terminal, or COLUMNS where it is set; None where lines may be as long
    as they like, as in a file or a log."""
    setting = environment.get("COLUMNS", "")
    if setting.isdecimal() and int(setting) > 0:
        return int(setting)
    if stream.isatty():
        try:
            return os.get_terminal_size(stream.fileno()).columns or None
        except (OSError, ValueError, AttributeError):
            return None
    return None
