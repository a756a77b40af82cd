"""Deaths of an exporter's process from work that it announced, on systems without a safe fork.

Some kernels end their process for inputs that they don't take. The process announces what it is
about to try; after its death another process runs the exporter again and leaves that out.
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
    """Announces, in an open file shared with the process, the next step that may end the process.

    Attributes:
        deaths: by label, the signal with which an earlier process died at that step.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.deaths: dict[str, str] = {}

    def announce(self, label: str) -> None:
        """Announce, in the process, the next step."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(label.encode())
        self._file.flush()

    def add_death(self, error: ChildError) -> bool:
        """Record a process's death; return whether another process can skip its last step."""
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
    """Call a function that runs an exporter in a separate process; return its result.

    It is called again after each announced death.

    Args:
        run: the function, which is passed None if the process can fork.

    Raises whatever `run` raises.
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
