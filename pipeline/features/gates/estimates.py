"""Measures the gates of an NPU by the estimates of the compiler that made its delegates.

Nothing here ran. Where no delegate of a method has an estimate, the gate fails: what fell off the
NPU would otherwise hold every limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.features.gates.measures import Json, Measured, Subject
from pipeline.store.errors import listed, plural

_MOST = 5  # delegates that a sentence names


def measure_npu_cycles(method: Subject, limit: int) -> Measured:
    estimates, missing = _find_estimates(method, "max_npu_cycles")
    if missing:
        return None, missing
    cycles = sum(estimate["cycles"] for estimate in estimates)
    sentence = f"takes {cycles:,} cycles as {_tools(estimates)} estimates, at most {limit:,} wanted"
    return cycles, sentence + _describe_largest(estimates, "cycles")


def measure_npu_sram(method: Subject, limit: int) -> Measured:
    estimates, missing = _find_estimates(method, "max_npu_sram")
    if missing:
        return None, missing
    sram = max(estimate["sram"] for estimate in estimates)
    sentence = f"uses {sram:,} bytes of SRAM as {_tools(estimates)} estimates"
    return sram, f"{sentence}, at most {limit:,} wanted{_describe_largest(estimates, 'sram')}"


def _find_estimates(method: Subject, gate: str) -> tuple[Sequence[Json], str]:
    """Return the estimates of a method, and what is missing of them, or ""."""
    delegation = method.facts["delegation"]
    estimates: Sequence[Json] = delegation.get("estimates", ())
    partitions = delegation["partitions"]
    if not estimates:
        backends = ", ".join(sorted(partitions)) or "no backend"
        sentence = f"{gate} limits an estimate, and no compiler of its delegates made one"
        return (), f"{sentence}: it is lowered to {backends}; vela makes them for EthosUBackend"
    for backend in sorted({estimate["backend"] for estimate in estimates}):
        number = sum(estimate["backend"] == backend for estimate in estimates)
        if number < partitions[backend]:
            sentence = (
                f"{partitions[backend] - number} of {plural(partitions[backend], 'partition')}"
            )
            return estimates, f"{sentence} of {backend} have no estimate, which {gate} limits"
    return estimates, ""


def _tools(estimates: Sequence[Json]) -> str:
    return " and ".join(sorted({estimate["tool"] for estimate in estimates}))


def _describe_largest(estimates: Sequence[Json], figure: str) -> str:
    """Return which of several delegates have the most, to end a sentence."""
    if len(estimates) == 1:
        return ""
    ranked = sorted(enumerate(estimates), key=lambda entry: -entry[1][figure])
    named = (f"delegate {number}: {estimate[figure]:,}" for number, estimate in ranked)
    return f"; {listed(named, _MOST)}"
