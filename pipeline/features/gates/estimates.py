"""The estimates that an NPU's compiler makes for the delegates that it compiles.

Nothing here ran. If no delegate of a method has an estimate, the gate fails: otherwise work that
moved off the NPU would satisfy every limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.features.gates.gate import GateSubject, Json
from pipeline.store.errors import listed, plural

_MOST = 5  # delegates to name in a sentence


def find_estimates(method: GateSubject, gate: str) -> tuple[Sequence[Json], str]:
    """Return the estimates of a method, and a sentence on missing ones, or ""."""
    delegation = method.facts["delegation"]
    estimates: Sequence[Json] = delegation.get("estimates", ())
    partitions = delegation["partitions"]
    if not estimates:
        backends = ", ".join(sorted(partitions)) or "no backend"
        sentence = (
            f"{gate} limits an estimate, but no compiler of its delegates made one"
        )
        return (
            (),
            f"{sentence}: it is lowered to {backends}; vela makes them for EthosUBackend",
        )
    for backend in sorted({estimate["backend"] for estimate in estimates}):
        number = sum(estimate["backend"] == backend for estimate in estimates)
        if number < partitions[backend]:
            sentence = (
                f"{partitions[backend] - number} of "
                f"{plural(partitions[backend], 'partition')}"
            )
            return (
                estimates,
                f"{sentence} of {backend} have no estimate, which {gate} limits",
            )
    return estimates, ""


def name_tools(estimates: Sequence[Json]) -> str:
    return " and ".join(sorted({estimate["tool"] for estimate in estimates}))


def describe_largest(estimates: Sequence[Json], figure: str) -> str:
    """Return a sentence ending that ranks several delegates by a figure."""
    if len(estimates) == 1:
        return ""
    ranked = sorted(enumerate(estimates), key=lambda entry: -entry[1][figure])
    named = (f"delegate {number}: {estimate[figure]:,}" for number, estimate in ranked)
    return f"; {listed(named, _MOST)}"
