"""The crash log of a package: which method a worker was about to run when it died.

A damaged package can end the process that runs it, or never come to an end. So a worker that
validates writes down which method it is about to load or to run, and for how long at most; if it
dies there, the next try leaves that method out and reports the crash as its failure, and the other
methods are validated all the same. No torch is imported here.
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
    """Two files next to the logs of a package: the step that its worker is at, and its crashes.
    The timeout of each step is in seconds; 0 is none."""

    def __init__(self, logs: Path, package: str, timeout: float = 0) -> None:
        self._step = logs / package / "validate.step"
        self._crashes = logs / package / "validate.crashes"
        self._timeout = timeout
        self._latest: tuple[str, str] | None = None

    @contextmanager
    def guard(self, method: str, step: str) -> Iterator[None]:
        """Note a step that may end the process, and end it after the timeout.

        The alarm ends the process from outside Python, since native code that doesn't return never
        lets Python run.
        """
        if (method, step) != self._latest:
            self._latest = method, step
            with suppress(OSError):
                self._step.parent.mkdir(parents=True, exist_ok=True)
                clear_place(self._step)
                self._step.write_text(json.dumps([method, step, self._timeout]))
        signal.setitimer(signal.ITIMER_REAL, self._timeout)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def record_crash(self, how: str) -> bool:
        """Record that the worker died at the step it noted; return whether to try again.

        Trying again is in vain where it noted none, or where the same method crashed before. `how`
        says how the process ended, such as "SIGSEGV(-11)".
        """
        try:
            method, step, timeout = json.loads(self._step.read_text())
        except (OSError, ValueError):  # not there, or half written
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
        """Return the predicate of a sentence about each method that ended its worker in this run;
        that of "" is about the package as a whole, which was opened."""
        record = read_record(self._crashes)
        if record and fits(record, dict[str, str]):
            return record
        return {}

    def write(self, crashes: Mapping[str, str]) -> None:
        """Record the crashes that another log holds."""
        if crashes:
            write_atomically(self._crashes, json.dumps(dict(crashes)).encode())

    def read_step(self) -> str:
        """Return the step that was noted last as text, for the log of another machine; "" without
        one."""
        try:
            return self._step.read_text()
        except (OSError, ValueError):
            return ""

    def write_step(self, text: str) -> None:
        """Note a step that another machine's log gave."""
        write_atomically(self._step, text.encode())

    def clear(self, crashes: bool = True) -> None:
        """Forget the step, and the crashes unless they are to be kept."""
        with suppress(OSError):
            remove(self._step)
            if crashes:
                remove(self._crashes)
