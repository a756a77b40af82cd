"""Finds the results of a kind in a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.features.cache.index import subject
from pipeline.features.cache.index_file import open_index
from pipeline.store.digest import Digest
from pipeline.store.store import Store

_MOST_EARLIER = 1000  # results to search for the nearest one


def earlier_keys(
    store: Store, kind: str, like: Mapping[str, Any] | None = None
) -> Iterator[tuple[Digest, Mapping[str, Any]]]:
    """Yield the digest and the key of each recent result of a kind, the most recently used first.

    With `like`, only results whose keys are comparable to it count.
    """
    about = subject(like) if like is not None else None
    with open_index(store) as index:
        earlier = index.find(kind, about, _MOST_EARLIER)
    for digest in earlier:
        entry = store.read_entry(store.action_path(digest), digest)
        if entry is not None:
            yield digest, entry.key
