"""Formats the figures of records as text."""

from __future__ import annotations

from collections.abc import Sequence

NOTHING = "–"


def percent(share: float | str | None, digits: int = 1) -> str:
    if isinstance(share, int | float):
        return f"{100 * share:.{digits}f} %"
    return error(share)


def error(value: float | str | None) -> str:
    """Format an output's error, or another figure without a unit, to three significant digits."""
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return {"inf": "∞", "-inf": "−∞"}.get(value, value)
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:#.3g}".rstrip(".").replace("-", "−")
    return _plain_exponent(f"{value:.2e}")


def short(value: float) -> str:
    """Format a limit, which a person set or which was rounded, to at most six digits."""
    return _plain_exponent(f"{value:g}")


def _plain_exponent(text: str) -> str:
    return (
        text.replace("e-0", "e-")
        .replace("e+0", "e")
        .replace("e+", "e")
        .replace("-", "−")
    )


def decibel(value: float | str | None) -> str:
    if value == "inf":
        return "exact"
    if isinstance(value, int | float):
        return f"{value:.1f} dB".replace("-", "−")
    return error(value)


def ratio(value: float | str | None) -> str:
    if isinstance(value, int | float):
        return f"{value:.6f}"
    return error(value)


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {remainder} s"


def milliseconds(value: float) -> str:
    if value < 100:
        return f"{value:.3g} ms"
    return f"{value:.0f} ms"


def size_range(limits: Sequence[int | None]) -> str:
    """Format the minimum and maximum of a size; None means no limit."""
    least, greatest = limits
    if greatest is None:
        return f"{least:,} or more"
    if least == greatest:
        return f"{least:,}"
    return f"{least:,} to {greatest:,}"


def sort_key(value: float | str | None) -> float:
    """Return a number to sort figures by; undefined figures get the lowest."""
    if value is None:
        return -1e308
    if isinstance(value, str):
        return {"inf": 1e308, "-inf": -1e307}.get(value, -1e308)
    return value
