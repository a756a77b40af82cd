"""Nothing to do, in a large workspace, against a doit run with as many tasks that do nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.measure import BenchmarkError, Result, Run, best, in_turns, rounded, run
from benchmarks.workspaces import Sizes, finished_checkout, quiet

LIMIT, LIMIT_SECONDS = 3.0, 0.6
EMPTY = """\
DOIT_CONFIG = {{"backend": "sqlite3", "verbosity": 0}}


def task_empty():
    for number in range({packages}):
        yield {{"name": str(number), "actions": ["true"], "uptodate": [True]}}
"""


def noop(folder: Path, sizes: Sizes) -> Result:
    """The bare `doit`, which lowers and validates, is judged; `lower` alone is told."""
    checkout = finished_checkout(folder / "workspace", sizes.packages, sizes.methods)
    empty = folder / "empty"
    empty.mkdir()
    (empty / "dodo.py").write_text(EMPTY.format(packages=sizes.packages))

    def nothing(_: int) -> Run:
        return run([sys.executable, "-m", "doit"], empty, checkout.environment)

    def everything(_: int) -> Run:
        return checkout.doit()

    def lower(_: int) -> Run:
        return checkout.doit("lower")

    for side in (nothing, everything):  # the first run of each writes its database
        side(0)
    least, ours, lowered = in_turns(sizes.turns, nothing, everything, lower)
    told = f"up to date: {sizes.packages} packages\n"
    if any(each.output != told for each in ours):
        raise BenchmarkError(f"the workspace is not up to date: {ours[0].output[-500:]}")
    torch_free = quiet(checkout.imported())
    ratio, seconds = best(ours) / best(least), best(ours)
    return Result(
        case="noop",
        ratio=ratio,
        limit=LIMIT,
        ok=ratio <= LIMIT and seconds < LIMIT_SECONDS and torch_free,
        measured=f"{ratio:.2f} x, {seconds:.2f} s, torch {'not ' * torch_free}imported",
        to_reach=f"<= {LIMIT:g} x, < {LIMIT_SECONDS:g} s, torch not imported",
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
            "cpu_ratio": min(e.cpu for e in ours) / min(e.cpu for e in least),
        },
    )
