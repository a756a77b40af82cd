"""Leases: builds under way, which keep everyone from evicting what they use of a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from pipeline.store.files import sweep, temporary
from pipeline.store.store import Store

_FOLDER = "runs"


@contextmanager
def lease(store: Store) -> Iterator[None]:
    """Keep everyone from evicting what is used of the store from now on, while the block lasts."""
    with ExitStack() as stack:
        # A store that can't be written raises, and nothing is evicted there either.
        with suppress(OSError):
            stack.enter_context(temporary(store.root / _FOLDER, store.root))
        yield


def earliest_lease(store: Store) -> float:
    """Return when the oldest of the builds under way began, in seconds since the epoch, or infinity
    if there is none."""
    folder = store.root / _FOLDER
    sweep(folder)
    times = [float("inf")]
    for path in folder.glob(".*"):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return min(times)
