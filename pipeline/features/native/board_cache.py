"""Chooses which entries leave the cache folder of a board."""

from __future__ import annotations

from collections.abc import Collection

_ENTRIES = ("runner-", "data-")
_BLOCK = 1024


def choose_evictions(
    listing: str, in_use: Collection[str], size: int, cache_size: int
) -> list[str] | None:
    """Return the entries to remove, least recently used first.

    Returns None if that can't free enough room.

    Args:
        listing: one line per entry, with its size in KiB and its name, most recently used first.
        in_use: the entries that must stay.
        size: the number of bytes to add.
        cache_size: the maximum size of the folder, in bytes.
    """
    sizes = {}
    for line in listing.splitlines():
        blocks, _, name = line.partition("\t")
        sizes[name] = int(blocks) * _BLOCK
    excess = sum(sizes.values()) + size - cache_size
    evictions = []
    for name in reversed(sizes):
        if excess <= 0:
            break
        if name.startswith(_ENTRIES) and name not in in_use:
            evictions.append(name)
            excess -= sizes[name]
    return None if excess > 0 else evictions
