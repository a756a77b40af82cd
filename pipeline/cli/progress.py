"""Progress while actions run: a line per ended action, or a feature's view."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pipeline.moments import call_all
from pipeline.plan.actions import Action
from pipeline.report.events import Event, outcome_word
from pipeline.run.batch import Outlook, Show
from pipeline.store.names import shorten_name
from pipeline.store.visible import one_line


@contextmanager
def progress_on(
    stream: Any, actions: Sequence[Action], outlook: Outlook
) -> Iterator[Show]:
    """Yield the callback for events."""

    def line(event: Event) -> None:
        title = shorten_name(one_line(event.title))
        stream.write(
            f"{outcome_word(event.outcome):<8} {title:<44} {event.seconds:6.1f} s\n"
        )
        stream.flush()

    for view in call_all("live_view", stream, actions, outlook, line):
        with view as show:
            yield show
        return
    yield line


def terminal_width(
    stream: Any, environment: Mapping[str, str] = os.environ
) -> int | None:
    """Return the number of columns from COLUMNS or else the terminal, or None for no limit.

    Files and logs have no limit.
    """
    setting = environment.get("COLUMNS", "")
    if setting.isdecimal() and int(setting) > 0:
        return int(setting)
    if stream.isatty():
        try:
            return os.get_terminal_size(stream.fileno()).columns or None
        except (OSError, ValueError, AttributeError):
            return None
    return None
