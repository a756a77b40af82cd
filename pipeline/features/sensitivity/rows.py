"""The rows of a method's modules and kinds of operators, as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.features.sensitivity.search import (
    Group,
    Noise,
    OutOfBudgetError,
    to_decibels,
)

GREATEST = 120.0  # dB; beyond it, only the processor's own rounding is measured


def describe_modules(
    kept: Sequence[str],
    estimates: Mapping[str, float],
    measured: Mapping[str, float],
    members: Mapping[str, Group],
    saved: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Return a row for each unit, the noisiest first, with measured figures or else estimates."""
    noise = {**estimates, **measured}
    together = math.fsum(noise.values())
    rows = []
    for name in sorted(noise, key=lambda name: (-noise[name], name)):
        share = 0.0
        if together and math.isfinite(together):
            share = noise[name] / together
        rows.append(
            {
                "module": name,
                "sqnr_db": round_decibels(noise[name]),
                "measured": name in measured,
                "share": round(share, 4),
                "saved_bytes": _count_saved(members[name], saved),
                "chosen": name in kept,
            }
        )
    return rows


def describe_kinds(
    kinds: Mapping[str, Group],
    probe: Callable[[Group], Noise],
    saved: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Return a row for each kind of operator that the budget allows."""
    rows: list[dict[str, Any]] = []
    for kind, operators in kinds.items():
        try:
            noise = probe(operators)
        except OutOfBudgetError:
            break
        rows.append(
            {
                "operator": kind,
                "count": len(operators),
                "sqnr_db": round_decibels(max(noise)),
                "saved_bytes": _count_saved(operators, saved),
            }
        )
    return sorted(rows, key=lambda row: (row["sqnr_db"], row["operator"]))


def _count_saved(operators: Group, saved: Mapping[str, int]) -> int:
    counts = Counter(saved)
    return sum(counts[name] for name in operators)


def round_decibels(share: float) -> float:
    """Return a share of noise in dB, rounded to a tenth."""
    return round(max(-GREATEST, min(to_decibels(share), GREATEST)), 1)
