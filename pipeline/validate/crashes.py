"""The crash log of a package: which method a worker was about to run when it died.

A damaged package can crash the process that runs it, or hang. A worker that validates therefore
records which method it is about to load or run, and for how long at most. If it dies there, the
next try skips that method and reports the crash as its failure; the other methods are still
validated. This module doesn't import torch.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.store.files import clear_place, read_record, remove, write_atomically
from pipeline.store.forms import fits


class CrashLog:
    """Two files next to the logs of a package: the current step of its worker, and its crashes.

    `step_file` holds the step as JSON. `timeout` is the time limit of each step in seconds; 0 means
    none.
    """

    def __init__(self, logs: Path, package: str, timeout: float = 0) -> None:
        self.step_file = logs / package / "validate.step"
        self._crashes = logs / package / "validate.crashes"
        self._timeout = timeout
        self._latest: tuple[str, str] | None = None

    @contextmanager
    def guard(self, method: str, step: str) -> Iterator[None]:
        """Record a step that may crash the process, and kill the process after the timeout.

        The alarm must act from outside Python, since native code that hangs never returns to the
        interpreter.
        """
        if (method, step) != self._latest:
            self._latest = method, step
            with suppress(OSError):
                self.step_file.parent.mkdir(parents=True, exist_ok=True)
                clear_place(self.step_file)
                self.step_file.write_text(json.dumps([method, step, self._timeout]))
        signal.setitimer(signal.ITIMER_REAL, self._timeout)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def record_crash(self, how: str) -> bool:
        """Record that the worker died at its recorded step; return whether to try again.

        Trying again is pointless if it recorded no step or if the same method crashed before. `how`
        says how the process ended, for example "SIGSEGV(-11)".
        """
        try:
            method, step, timeout = json.loads(self.step_file.read_text())
        except (OSError, ValueError):  # missing or partly written
            return False
        recorded = self.crashes()
        if method in recorded:
            return False
        if "ALRM" in how:
            sentence = f"was ended after {timeout:g} s (validate.timeout) while {step}"
        else:
            sentence = f"ends the process that runs it ({how}) while {step}"
            sentence += (
                "; the system may have ended it for lack of memory"
                if "KILL" in how
                else ""
            )
        write_atomically(
            self._crashes, json.dumps({**recorded, method: sentence}).encode()
        )
        return True

    def crashes(self) -> dict[str, str]:
        """Return, by method, how it crashed its worker in this run, as the predicate of a sentence.

        The entry for "" is about opening the package as a whole.
        """
        record = read_record(self._crashes)
        if record and fits(record, dict[str, str]):
            return record
        return {}

    def write(self, crashes: Mapping[str, str]) -> None:
        """Record the crashes from another log."""
        if crashes:
            write_atomically(self._crashes, json.dumps(dict(crashes)).encode())

    def clear(self, crashes: bool = True) -> None:
        """Delete the step, and also the crashes unless they should be kept."""
        with suppress(OSError):
            remove(self.step_file)
            if crashes:
                remove(self._crashes)
