"""A method with thousands of constants: how its compile time grows as their number doubles."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.growth import compile_constants
from benchmarks.measure import Result, rounded
from benchmarks.workspaces import Sizes

LIMIT = 100.0  # CPU seconds for 2,000
DOUBLING_LIMIT = 2.4  # times the CPU time for twice as many: as near as times get to "linear"


def constants(folder: Path, sizes: Sizes) -> Result:
    """Lower and emit in this warm process, patched as a worker is; the export isn't counted."""
    first, *_ = counts = sizes.constants
    compile_constants(first, folder)()
    seconds = []
    for count in counts:
        work = compile_constants(count, folder)
        before = time.process_time()
        work()
        seconds.append(time.process_time() - before)
    doubled = seconds[-1] / seconds[-2]
    figures = zip(counts, seconds, strict=True)
    return Result(
        case="constants",
        ratio=seconds[-1] / LIMIT,
        limit=1.0,
        ok=seconds[-1] <= LIMIT and doubled <= DOUBLING_LIMIT,
        measured=f"{counts[-1]:,} in {seconds[-1]:.1f} CPU s, {doubled:.2f} x those of half",
        to_reach=f"<= {LIMIT:g} CPU s, <= {DOUBLING_LIMIT:g} x",
        note=", ".join(f"{count:,}: {cpu:.1f} CPU s" for count, cpu in figures),
        figures={"constants": list(counts), "cpu_seconds": rounded(seconds)},
    )
