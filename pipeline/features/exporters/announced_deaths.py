"""Deaths of an exporter's process of what it announced, where no fork can die in its place.

Some kernels end their process for inputs that they do not take. The process says what it is about
to try; after its death another one runs the exporter again, and leaves that out.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from pipeline.features.exporters.handover import Handover
from pipeline.run.isolated import ChildError, fork_is_safe

_MOST_DEATHS = 16


class Announcements:
    """Announces in an open file, which a process shares, the next thing that may end it.

    Attributes:
        deaths: the labels of what earlier processes died of, with the signal.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.deaths: dict[str, str] = {}

    def announce(self, label: str) -> None:
        """Say in the process what it tries next."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(label.encode())
        self._file.flush()

    def add_death(self, error: ChildError) -> bool:
        """Add what a process died of; return whether another one can leave it out."""
        self._file.seek(0)
        label = self._file.read().decode()
        self._file.seek(0)
        self._file.truncate()
        if not error.signal or not label or len(self.deaths) >= _MOST_DEATHS:
            return False
        self.deaths[label] = signal.Signals(error.signal).name
        return True


def run_announced(
    run: Callable[[Announcements | None], dict[str, Any]], handover: Handover
) -> dict[str, Any]:
    """Return what a function returns that runs an exporter in a process of its own, and again after
    each death that was announced.

    Args:
        run: is given None where the process can fork.

    Raises what it raises.
    """
    if fork_is_safe():
        return run(None)
    with TemporaryFile() as file:
        announcements = Announcements(file)
        while True:
            try:
                return run(announcements)
            except ChildError as error:
                if not announcements.add_death(error):
                    raise
                handover.empty()
