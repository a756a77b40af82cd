"""Chooses which action starts next: the longest that the memory is there for.

Longest first keeps workers busy to the end, where the order in which actions became ready may leave
one worker with the longest. A pure function, whatever runs the actions.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.store.costs import Cost


def choose_next(
    waiting: Iterable[Cost], running: Iterable[Cost], free: float
) -> int | None:
    """Return the place of the action to start next, None where all have to wait.

    An action that is expected to take more than there is runs when nothing else does: the
    expectation may be wrong, and the system may have ways out.

    Args:
        waiting: longest first, as `longest_first` sorts them.
        running: those under way.
        free: the bytes that nobody holds but the workers; infinite where memory does not count.
    """
    under_way = list(running)
    free_bytes = free - sum(expected.peak for expected in under_way)
    for place, expected in enumerate(waiting):
        if expected.peak <= free_bytes or not under_way:
            return place
    return None


def longest_first(expected: Cost) -> float:
    """Return what actions are sorted by."""
    return -expected.seconds
