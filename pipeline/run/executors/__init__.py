"""The interface of executors, and the error for an action whose worker dies.

An executor takes an action and returns a future of its report. It knows neither plans nor tasks;
`run/pool.py` decides which action runs next and which is retried.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from pipeline.plan.actions import Action
from pipeline.run.performed import Report


class WorkerLostError(Exception):
    """The process of an action died.

    Attributes:
        signals: those that killed it, as "SIGKILL(-9)", or "".
        stage: the stage of the action at that time, or "".
        peak_bytes: the most memory that it was seen to hold.
        system: the system's reason, or "".
        host: the machine of a cluster that it ran on; "" for this one.
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
    """No worker accepts actions any more; the message is written for users."""


class Executor(Protocol):
    """A place where actions run. It accepts `slots` actions at once and runs `width` of them."""

    @property
    def slots(self) -> int: ...

    @property
    def width(self) -> int: ...

    def submit(self, action: Action, memory: int) -> Future[Report]:
        """Return a future of the action's report.

        The future raises WorkerLostError if the worker dies, and ExecutorLostError if no worker can
        be reached.

        Args:
            memory: the bytes that the action is expected to take; 0 if unknown.
        """

    def free_memory(self) -> float:
        """Return the bytes that this executor's workers may share: free memory plus what they hold.

        Infinite if the executor manages memory itself.
        """

    def look(self) -> None:
        """Check the running actions; called at short intervals while the pool waits for some."""

    def close(self) -> None:
        """Stop the running actions, and all workers that this executor started."""
