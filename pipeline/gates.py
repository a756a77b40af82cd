"""Gates: limits that a config sets on a package, checked against its manifest.

What a backend's own kernels run, where it has kernels instead of a delegate, counts as delegated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol


class Gates(Protocol):
    """Shares are from 0 to 1 and hold for every method; `max_size` is in bytes, of all files."""

    @property
    def min_delegated_nodes(self) -> float | None: ...
    @property
    def min_delegated_ops(self) -> float | None: ...
    @property
    def max_size(self) -> int | None: ...


def failed_gates(gates: Gates, manifest: Mapping[str, Any]) -> Iterator[str]:
    """One sentence for each gate that fails: the figure, the limit, and what stands against it."""
    for method, facts in manifest["methods"].items():
        counts = facts["delegation"]
        left = ", ".join(f"{name} x{count}" for name, count in counts["undelegated"].items())
        kernels = {n: c for own in counts.get("kernels", {}).values() for n, c in own.items()}
        for limit, part, whole, noun, own in (
            (
                gates.min_delegated_nodes,
                "delegated_nodes",
                "nodes",
                "nodes",
                sum(kernels.values()),
            ),
            (
                gates.min_delegated_ops,
                "delegated_operators",
                "operators",
                "operators",
                len(kernels),
            ),
        ):
            share = (counts[part] + own) / counts[whole] if counts[whole] else 1.0
            if limit is not None and share < limit:
                yield (
                    f"{method}: {share:.1%} of {noun} delegated, at least {limit:.1%} wanted; "
                    f"left to portable kernels: {left}"
                )
    size = sum(file["size"] for file in manifest["files"].values())
    if gates.max_size is not None and size > gates.max_size:
        yield f"the package has {size} bytes, at most {gates.max_size} wanted"
