"""What a worker was about to run, for whoever finds it dead.

A damaged package can end the process that runs it, or never come to an end. So a worker that
validates writes down which method it is about to load or to run, and for how long at most; if it
dies there, the next try leaves that method out and tells of it (validating/deaths.py), and the
other methods are proved all the same. No torch here.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.store.files import write_atomically


@dataclass(frozen=True)
class Death:
    """`method` is empty where the package as a whole was opened; `what` is what was being done to
    it, `how` how the process ended, `timeout` after how many seconds it was to be ended."""

    method: str
    what: str
    how: str
    timeout: float

    @property
    def sentence(self) -> str:
        if "ALRM" in self.how:
            return f"was ended after {self.timeout:g} s (validate.timeout) while {self.what}"
        killed = "; the system may have ended it for lack of memory" if "KILL" in self.how else ""
        return f"ends the process that runs it ({self.how}) while {self.what}{killed}"


class LastWords:
    """Two files beside the logs of a package: what its worker says, and the deaths so far.

    Args:
        timeout: of what a worker is about to do, in seconds; 0 is none.
    """

    def __init__(self, logs: Path, package: str, timeout: float = 0) -> None:
        self._said = logs / package / "validate.said"
        self._died = logs / package / "validate.died"
        self._timeout = timeout
        self._latest: tuple[str, str] | None = None

    @contextmanager
    def before(self, method: str, what: str) -> Iterator[None]:
        """Around everything that may end the process; said where it is news. The alarm ends the
        process from outside Python, which native code that doesn't return never lets run."""
        if (method, what) != self._latest:
            self._latest = method, what
            with suppress(OSError):
                self._said.parent.mkdir(parents=True, exist_ok=True)
                self._said.write_text(json.dumps([method, what, self._timeout]))
        signal.setitimer(signal.ITIMER_REAL, self._timeout)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def bury(self, how: str) -> bool:
        """Records the death of a worker. False where it said nothing, or where the same method was
        the end of another one before: then to try again would be in vain."""
        try:
            method, what, timeout = json.loads(self._said.read_text())
        except (OSError, ValueError):  # not there, or half written
            return False
        known = self.deaths()
        if any(death.method == method for death in known):
            return False
        deaths = [asdict(death) for death in (*known, Death(method, what, how, timeout))]
        write_atomically(self._died, json.dumps(deaths).encode())
        return True

    def deaths(self) -> list[Death]:
        """Those of this run."""
        try:
            return [Death(**death) for death in json.loads(self._died.read_text())]
        except (OSError, ValueError, TypeError):
            return []

    def forget(self, deaths: bool = True) -> None:
        """Forgets what was said last, and the deaths."""
        with suppress(OSError):
            self._said.unlink(missing_ok=True)
            if deaths:
                self._died.unlink(missing_ok=True)
