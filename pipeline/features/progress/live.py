"""The live view of a run on a terminal."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pipeline.cli.columns import cut_middle
from pipeline.cli.terminal import redirected, unguarded
from pipeline.plan.actions import Action
from pipeline.report.events import Event, outcome_word
from pipeline.run.action_status import ActionStatus
from pipeline.run.batch import Outlook, Show
from pipeline.store.visible import one_line

_SECONDS_BETWEEN_LOOKS = 0.2
_LEAST_NAME = 18
_STYLES = {"failed": "red", "built": "green", "refit": "green"}


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
def show_live(
    stream: Any, actions: Sequence[Action], outlook: Outlook
) -> Iterator[Show]:
    """Yield the function to call with each event, which is shown while the rest goes on."""
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
