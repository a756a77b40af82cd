"""Lines about actions that take long, for a log: a CI job would show nothing until they end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pipeline.plan.actions import Action
from pipeline.report.events import Event
from pipeline.run.batch import Outlook, Show
from pipeline.store.names import shorten_name
from pipeline.store.visible import one_line

_FIRST_SECONDS = 60  # until the first line about an action; then doubled for each
_SECONDS_BETWEEN_LOOKS = 1.0


class LongActions:
    """The running actions of a run: since when each runs, and when a line about it is due."""

    def __init__(self, actions: Sequence[Action], outlook: Outlook) -> None:
        self._actions = actions
        self._outlook = outlook
        self._since: dict[str, float] = {}  # by title
        self._due: dict[str, float] = {}  # seconds until the next line

    def look(self, now: float) -> Iterator[str]:
        """Yield a line for each running action that is due for one."""
        for action in list(self._actions):
            status = self._outlook.find_status(action)
            if status is None:
                self._since.pop(action.title, None)
                continue
            seconds = now - self._since.setdefault(action.title, now)
            if seconds == 0:
                self._due[action.title] = _FIRST_SECONDS
            if seconds >= self._due[action.title]:
                self._due[action.title] *= 2
                stage = f", {one_line(status.stage)}" if status.stage else ""
                title = shorten_name(one_line(action.title))
                yield f"still running: {title} ({seconds:.0f} s{stage})"


@contextmanager
def report_long_actions(
    stream: Any, actions: Sequence[Action], outlook: Outlook, show_line: Show
) -> Iterator[Show]:
    """Yield the callback for events; write lines about long actions in the meantime."""
    long_actions = LongActions(actions, outlook)
    lock = threading.Lock()
    over = threading.Event()

    def show(event: Event) -> None:
        with lock:
            show_line(event)

    def look() -> None:
        while not over.wait(_SECONDS_BETWEEN_LOOKS):
            for line in long_actions.look(time.monotonic()):
                with lock:
                    stream.write(f"{line}\n")
                    stream.flush()

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield show
    finally:
        over.set()
        looking.join()
