"""Sizes in bytes, in the form in which people write and read them."""

from __future__ import annotations

import re

UNITS = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SIZE_PATTERN = rf"^([0-9]{{1,18}}(?:\.[0-9]{{1,9}})?) ?({'|'.join(UNITS)})$"


def parse_size(text: str) -> int | None:
    """Parse a size such as `40MB` to bytes; return None if the text isn't a size."""
    match = re.fullmatch(SIZE_PATTERN, text)
    if not match:
        return None
    whole, _, decimals = match[1].partition(".")
    return int(whole + decimals) * UNITS[match[2]] // 10 ** len(decimals)


def human_size(size: float) -> str:
    """Format a size in the unit that leaves one to three digits before the point."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
