"""Leases: builds in progress, which protect the store entries that they use from eviction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from pipeline.store.files import temporary
from pipeline.store.store import Store

FOLDER = "runs"  # in a store: a file for each build in progress


@contextmanager
def lease(store: Store) -> Iterator[None]:
    """Protect everything that is used in the store from eviction until the block ends."""
    with ExitStack() as stack:
        # A store that can't be written to raises OSError, but nothing is evicted there either.
        with suppress(OSError):
            stack.enter_context(temporary(store.root / FOLDER, store.root))
        yield
