"""Figures of records, as people read them, and the places that they come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pipeline.store.sizes import human_size

Json = Mapping[str, Any]

NOTHING = "–"


class Place(NamedTuple):
    """A line of a file of the workspace; `code` is its text, where that is known."""

    file: str
    line: int
    code: str = ""
    function: str = ""

    @property
    def anchor(self) -> str:
        """Its name in the page, where the line is shown."""
        return f"{self.file}:{self.line}"


_TOLD = re.compile(
    r"(?:(?P<code>.*)  # )?(?P<file>[^\s:][^:]*):(?P<line>\d+)(?:, in (?P<function>.+))?", re.DOTALL
)


def place(told: str | None) -> Place | None:
    """Of `code  # file:line, in function` and of `file:line`; None for anything else."""
    match = _TOLD.fullmatch(told or "")
    if match is None:
        return None
    line, code = int(match["line"]), (match["code"] or "").strip()
    return Place(match["file"].strip(), line, code, match["function"] or "")


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def error(value: float | str | None) -> str:
    """An error of an output, or another figure without unit, to three digits."""
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return {"inf": "∞", "-inf": "−∞"}.get(value, value)
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:#.3g}".rstrip(".").replace("-", "−")
    return f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e").replace("-", "−")


def decibel(value: float | str | None) -> str:
    if value == "inf":
        return "exact"
    return f"{value:.1f} dB" if isinstance(value, int | float) else error(value)


def share(value: float | str | None) -> str:
    return percent(value) if isinstance(value, int | float) else error(value)


def ratio(value: float | str | None) -> str:
    return f"{value:.6f}" if isinstance(value, int | float) else error(value)


def milliseconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"


def size(value: float | None) -> str:
    return NOTHING if value is None else human_size(value)


def number(value: float | str | None) -> float:
    """One by which figures are sorted; what is undefined comes last."""
    if value is None:
        return -1e308
    if isinstance(value, str):
        return {"inf": 1e308, "-inf": -1e307}.get(value, -1e308)
    return value


def count(amount: int, noun: str) -> str:
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def own_kernels(counts: Json) -> int:
    """Calls of kernels of backends that have no delegate, which count as delegated."""
    return sum(sum(own.values()) for own in counts.get("kernels", {}).values())


def delegated(counts: Json) -> float | None:
    """The share of nodes that don't run on portable kernels; None of a method without nodes."""
    if not counts.get("nodes"):
        return None
    return (counts["delegated_nodes"] + own_kernels(counts)) / counts["nodes"]
