"""Progress while actions run: a line for each that ended, or on a terminal the live view that a
feature brings."""

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
    """Yield the function to call with each event."""

    def line(event: Event) -> None:
        title = shorten_name(one_line(event.title))
        stream.write(
            f"{outcome_word(event.outcome):<8} {title:<44} {event.seconds:6.1f} s\n"
        )
        stream.flush()

    live_views = ()
    if is_live(stream):
        live_views = tuple(call_all("live_view", stream, actions, outlook))
    if live_views:
        with live_views[0] as show:
            yield show
    else:
        yield line


def is_live(stream: Any) -> bool:
    """Tell whether a stream is a terminal on which lines can be redrawn. The logs of CI are not,
    though some say that they are a terminal."""
    dumb = os.environ.get("TERM", "") in ("", "dumb")
    return bool(stream.isatty()) and not dumb and not os.environ.get("CI")


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
