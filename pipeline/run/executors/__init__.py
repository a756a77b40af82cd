"""Executors of actions: one interface, and what becomes of an action whose worker dies.

An executor takes an action and returns a future of its report. It knows neither plans nor tasks;
`run/pool.py` decides what runs next and what is tried again.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from pipeline.plan.actions import Action
from pipeline.run.performed import Report


class WorkerLostError(Exception):
    """The process of an action ended.

    Attributes:
        signals: those that ended it, as "SIGKILL(-9)", or "".
        stage: the one that the action was in, or "".
        peak_bytes: the most memory that it was seen to hold.
        system: what the system says of the end, or "".
        host: the machine of a cluster that it ran on, "" for this one.
    """

    def __init__(
        self,
        signals: str = "",
        stage: str = "",
        peak_bytes: int = 0,
        system: str = "",
        host: str = "",
    ) -> None:
        super().__init__(signals)
        self.signals, self.stage = signals, stage
        self.peak_bytes, self.system, self.host = peak_bytes, system, host


class ExecutorLostError(Exception):
    """No worker takes actions any more; the text is for people."""


class Executor(Protocol):
    """A place where actions run. `slots` is how many it takes at a time, of which `width` run."""

    @property
    def slots(self) -> int: ...

    @property
    def width(self) -> int: ...

    def submit(self, action: Action, memory: int) -> Future[Report]:
        """Return a future of the action's report.

        It raises WorkerLostError where its worker dies, and ExecutorLostError where all of them are
        out of reach.

        Args:
            memory: the bytes that the action is expected to take, 0 where that is not known.
        """

    def free_memory(self) -> float:
        """Return the bytes that nobody holds but the workers of this executor, among whom they are
        to be shared; infinite where it sees to memory itself."""

    def look(self) -> None:
        """Look how far the actions under way are; called every moment while some are awaited."""

    def close(self) -> None:
        """End what is under way, and all workers that this executor started."""
