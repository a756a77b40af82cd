"""Chooses which action starts next: the first that the memory is there for.

The order is that of the longest path: how long an action takes, and what waits for it. That keeps
workers busy to the end, where the order in which actions became ready may leave one worker with the
longest. A pure function, whatever runs the actions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pipeline.plan.actions import Action
from pipeline.plan.tasks import ActionTask

LEAST_MEMORY = (
    500 << 20
)  # bytes of an action that nothing is known of: torch and ExecuTorch


class Cost(NamedTuple):
    """Seconds of wall time, and bytes of memory at the peak."""

    seconds: float
    peak: int


class NoExpectations:
    """Expectations of actions where no feature remembers what they took."""

    def expect(self, action: Action) -> Cost:
        """Return what an action is expected to take."""
        return Cost(0.0, LEAST_MEMORY)

    def recall(self, action: Action | ActionTask) -> float | None:
        """Return the seconds that an action took before, None where that is not known."""
        return None

    def ahead(self, action: Action) -> float:
        """Return the seconds of the longest path that begins when an action ends."""
        return 0.0


def choose_next(
    waiting: Iterable[Cost], running: Iterable[Cost], free: float
) -> int | None:
    """Return the place of the action to start next, None where all have to wait.

    An action that is expected to take more than there is runs when nothing else does: the
    expectation may be wrong, and the system may have ways out.

    Args:
        waiting: in the order in which they should start.
        running: those under way.
        free: the bytes that nobody holds but the workers; infinite where memory does not count.
    """
    under_way = list(running)
    free_bytes = free - sum(expected.peak for expected in under_way)
    for place, expected in enumerate(waiting):
        if expected.peak <= free_bytes or not under_way:
            return place
    return None


class Idleness:
    """Adds up the time in which workers were free for actions that waited."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = 0.0  # of all workers together
        self._clock = clock
        self._idle = 0
        self._since = clock()

    def look(self, idle: int) -> None:
        """Say how many workers are free for an action that waits, from now on."""
        now = self._clock()
        self.seconds += self._idle * (now - self._since)
        self._idle = idle
        self._since = now
