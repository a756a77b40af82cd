"""Leases: builds under way, which keep everyone from evicting what they use of a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from pipeline.store.files import temporary
from pipeline.store.store import Store

FOLDER = "runs"  # of a store: a file for each build under way


@contextmanager
def lease(store: Store) -> Iterator[None]:
    """Keep everyone from evicting what is used of the store from now on, while the block lasts."""
    with ExitStack() as stack:
        # A store that can't be written raises, and nothing is evicted there either.
        with suppress(OSError):
            stack.enter_context(temporary(store.root / FOLDER, store.root))
        yield
