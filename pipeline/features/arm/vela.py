"""Attaches vela's summary of each partition that it compiles to the result, as an estimate.

Options and flags belong to `ethos_u`. `write_summary_metrics_csv_common`
(ethosu/vela/stats_writer.py) writes the columns; memory is in KiB.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pipeline.backends.estimate import Estimate
from pipeline.program.patching import wrapped

if TYPE_CHECKING:
    from executorch.exir.backend.backend_details import PreprocessResult

_COUNTS = {"clock": "core_clock", "cycles": "cycles_total", "busy_cycles": "cycles_npu"}
_COUNTS |= {"macs": "nn_macs"}
_MEMORIES = ("sram", "dram", "on_chip_flash", "off_chip_flash")
_log = logging.getLogger(__name__)


@contextmanager
def kept_estimates() -> Iterator[None]:
    """Within the context, attach vela's estimates to the results of Ethos-U's preprocessing."""
    from executorch.backends.arm.ethosu import backend

    estimates: list[Estimate | None] = []

    def compile_in_folder(
        original: Callable[..., bytes], *args: Any, **more: Any
    ) -> bytes:
        """Compile in a folder that outlives vela's call, and read vela's summary from it.

        A compile spec may name the folder, for users who want to read vela's output.
        """
        with TemporaryDirectory() as temporary:
            folder = more.get("intermediate_path") or temporary
            payload = original(*args, **{**more, "intermediate_path": folder})
            estimates.append(_find_summary(Path(folder, "output")))
        return payload

    def preprocess(
        original: Callable[..., PreprocessResult], *args: Any
    ) -> PreprocessResult:
        estimates.clear()
        result = original(*args)
        estimate = estimates[-1] if estimates else None
        return replace(result, _delegate_info_meta=estimate) if estimate else result

    with (
        wrapped(backend, "vela_compile", compile_in_folder),
        wrapped(backend.EthosUBackend, "preprocess", preprocess),
    ):
        yield


def _find_summary(folder: Path) -> Estimate | None:
    """Return the last summary that vela wrote to a folder, or warn and return None without one."""
    # A folder named by a compile spec keeps the summaries of earlier partitions.
    summaries = sorted(
        folder.glob("*_summary_*.csv"), key=lambda path: path.stat().st_mtime_ns
    )
    estimate = (
        read_summary(summaries[-1].read_text(encoding="utf-8")) if summaries else None
    )
    if estimate is not None:
        return estimate
    _log.warning("vela wrote no readable summary, so its estimate is unknown")
    return None


def read_summary(text: str) -> Estimate | None:
    """Parse a CSV summary, one line of names and one of values.

    Returns None if a figure is missing or isn't a valid number.
    """
    rows = list(csv.DictReader(text.splitlines()))
    if len(rows) != 1:
        return None
    row = rows[0]
    try:
        counts = {field: round(float(row[column])) for field, column in _COUNTS.items()}
        memory = {
            area: round(float(row[f"{area}_memory_used"]) * 1024) for area in _MEMORIES
        }
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    figures = {**counts, **memory}
    if min(figures.values()) < 0 or not counts["clock"]:
        return None
    return Estimate("vela", **figures)
