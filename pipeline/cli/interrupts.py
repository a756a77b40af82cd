"""The signals that stop a run: Ctrl-C, SIGTERM, and SIGHUP when the terminal is closed."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack
from typing import Any

_SAME = 1.0  # seconds within which a second signal counts as the same


class Interrupts:
    """Within the block, a signal sets `status` and, until `hold`, raises KeyboardInterrupt.

    A signal that was ignored before, as under `nohup`, is still ignored. Outside the main thread,
    which alone receives signals, nothing changes.
    """

    def __init__(self) -> None:
        self.status = 0  # exit status for the signal, as in shells
        self._held = False
        self._latest = -_SAME
        self._undo = ExitStack()

    def __enter__(self) -> Interrupts:
        ours = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if ours else ():
            before = signal.getsignal(number)
            if before not in (signal.SIG_IGN, None):  # None: an embedding program's
                self._undo.callback(signal.signal, number, before)
                signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def hold(self) -> None:
        """Stop raising from now on: the run is being closed."""
        self._held = True

    def _stop(self, number: int, _: Any) -> None:
        self.status = self.status or 128 + number
        since, self._latest = self._latest, time.monotonic()
        if not self._held and self._latest - since > _SAME:
            raise KeyboardInterrupt
