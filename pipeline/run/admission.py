"""Chooses which action starts next: the first in line that fits into memory.

Actions are ordered by longest path: their own time plus the time of the actions that wait for them.
This keeps all workers busy to the end; in the order in which actions became ready, one worker might
start the longest action last. `choose_next` is a pure function and does not depend on the executor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pipeline.plan.actions import Action
from pipeline.plan.tasks import ActionTask

# Bytes, for an action without history: torch and ExecuTorch.
LEAST_MEMORY = 500 << 20


class Cost(NamedTuple):
    """Wall time in seconds, and peak memory in bytes."""

    seconds: float
    peak: int


class NoExpectations:
    """Default expectations, used if no feature remembers the cost of earlier actions."""

    def expect(self, action: Action) -> Cost:
        """Return the expected cost of an action."""
        return Cost(0.0, LEAST_MEMORY)

    def recall(self, action: Action | ActionTask) -> float | None:
        """Return how many seconds an action took last time, or None if that is unknown."""
        return None

    def ahead(self, action: Action) -> float:
        """Return the seconds of the longest chain of actions that waits for this one."""
        return 0.0


def choose_next(
    waiting: Iterable[Cost], running: Iterable[Cost], free: float
) -> int | None:
    """Return the index of the action to start next, or None if all must wait.

    An action that exceeds the free memory still starts if no other is running: the expectation may
    be wrong, and the system may cope.

    Args:
        waiting: costs, in the order in which the actions should start.
        running: costs of the running actions.
        free: bytes that no process other than the workers holds; infinite if memory is not limited.
    """
    under_way = list(running)
    free_bytes = free - sum(expected.peak for expected in under_way)
    for place, expected in enumerate(waiting):
        if expected.peak <= free_bytes or not under_way:
            return place
    return None


class Idleness:
    """Sums the time during which workers were idle while actions waited."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = 0.0  # summed over all workers
        self._clock = clock
        self._idle = 0
        self._since = clock()

    def look(self, idle: int) -> None:
        """Record how many workers are idle, from now on, while actions wait."""
        now = self._clock()
        self.seconds += self._idle * (now - self._since)
        self._idle = idle
        self._since = now
