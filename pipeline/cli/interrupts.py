"""The signals that stop a run: Ctrl-C, SIGTERM, and SIGHUP of a terminal that is closed."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack
from typing import Any

_SAME = 1.0  # seconds in which a second signal means what the first one meant


class Interrupts:
    """Within the block, a signal raises KeyboardInterrupt until `hold`, and is noted in `status`.

    A signal that was ignored before, as under `nohup`, stays so. Outside of the main thread, which
    alone gets signals, all stay as they are.
    """

    def __init__(self) -> None:
        self.status = 0  # of the process, as shells give it for the signal
        self._held = False
        self._latest = -_SAME
        self._undo = ExitStack()

    def __enter__(self) -> Interrupts:
        ours = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if ours else ():
            before = signal.getsignal(number)
            if before not in (signal.SIG_IGN, None):  # None: of an embedding program
                self._undo.callback(signal.signal, number, before)
                signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def hold(self) -> None:
        """Raise no more from now on: the run is being closed."""
        self._held = True

    def _stop(self, number: int, _: Any) -> None:
        self.status = self.status or 128 + number
        since, self._latest = self._latest, time.monotonic()
        if not self._held and self._latest - since > _SAME:
            raise KeyboardInterrupt
