"""A large workspace with nothing to do, against a doit run with as many empty tasks."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.measure import BenchmarkError, Result, Run, best, in_turns, rounded, run
from benchmarks.workspaces import Sizes, finished_checkout, quiet

LIMIT, LIMIT_SECONDS = 3.0, 0.6
CPU_LIMIT = 2.0  # times a run with as many empty tasks
EMPTY = """\
DOIT_CONFIG = {{"backend": "sqlite3", "verbosity": 0}}


def task_empty():
    for number in range({tasks}):
        yield {{"name": str(number), "actions": ["true"], "uptodate": [True]}}
"""


def noop(folder: Path, sizes: Sizes) -> Result:
    """Judge the bare `doit`, which lowers and validates; report `lower` alone as well."""
    checkout = finished_checkout(folder / "workspace", sizes.packages, sizes.methods)
    empty = _write_empty(folder / "empty", sizes.packages)
    as_many = _write_empty(folder / "as_many", 2 * sizes.packages)  # each is lowered and validated

    def nothing(_: int, empty: Path = empty) -> Run:
        return run([sys.executable, "-m", "doit"], empty, checkout.environment)

    def nothing_as_often(repeat: int) -> Run:
        return nothing(repeat, as_many)

    def everything(_: int) -> Run:
        return checkout.doit()

    def lower(_: int) -> Run:
        return checkout.doit("lower")

    for side in (
        nothing,
        nothing_as_often,
        everything,
    ):  # its first run writes its database
        side(0)
    sides = (nothing, nothing_as_often, everything, lower)
    least, as_often, ours, lowered = in_turns(sizes.turns, *sides)
    told = f"up to date: {sizes.packages} packages\n"
    if any(each.output != told for each in ours):
        raise BenchmarkError(f"the workspace is not up to date: {ours[0].output[-500:]}")
    torch_free = quiet(checkout.imported())
    ratio, seconds = best(ours) / best(least), best(ours)
    cpu_ratio = min(e.cpu for e in ours) / min(e.cpu for e in as_often)
    return Result(
        case="noop",
        ratio=ratio,
        limit=LIMIT,
        ok=ratio <= LIMIT and seconds < LIMIT_SECONDS and torch_free and cpu_ratio <= CPU_LIMIT,
        measured=f"{ratio:.2f} x, {seconds:.2f} s, {cpu_ratio:.2f} x the CPU time of as many "
        f"tasks, torch {'not ' * torch_free}imported",
        to_reach=f"<= {LIMIT:g} x, < {LIMIT_SECONDS:g} s, <= {CPU_LIMIT:g} x, torch not imported",
        note=f"{sizes.packages} packages x {sizes.methods} methods; the empty doit takes "
        f"{best(least):.2f} s",
        figures={
            "packages": sizes.packages,
            "methods": sizes.methods,
            "torch_imported": not torch_free,
            "doit_seconds": rounded([each.wall for each in ours]),
            "doit_cpu_seconds": rounded([each.cpu for each in ours]),
            "lower_seconds": rounded([each.wall for each in lowered]),
            "empty_seconds": rounded([each.wall for each in least]),
            "empty_cpu_seconds": rounded([each.cpu for each in least]),
            "as_many_cpu_seconds": rounded([each.cpu for each in as_often]),
            "cpu_ratio": cpu_ratio,
        },
    )


def _write_empty(folder: Path, tasks: int) -> Path:
    folder.mkdir()
    (folder / "dodo.py").write_text(EMPTY.format(tasks=tasks))
    return folder
