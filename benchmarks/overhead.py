"""The cost that the cache adds to a cold build, in one warm process.

    python -m benchmarks.overhead WORKSPACE REPEATS

Off: the methods of a package are read, lowered one by one and emitted, each to a `.pte` in memory.
On: the same through an empty store, with everything that doit and its workers do for it: the
archive is described, each method recorded, and the package linked and installed. No two partitions
of a judged package are equal, since the second would be a cache hit and hide the cost of misses.
CPU time is judged: wall time includes disk writes, which the store requires and which off never
makes. A difference of a few per cent shows only if off varies by less, so that variation is
reported too.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.measure import BenchmarkError, Result, in_turns, rounded, run
from benchmarks.workspaces import (
    Checkout,
    Sizes,
    new_checkout,
    plan_of,
    shipped_archives,
    write_config,
)

LIMIT = 0.03
LAYERS, WIDE = "layers", "wide"


def miss_overhead(folder: Path, sizes: Sizes) -> Result:
    from benchmarks.models import LENGTH, WIDTH, AverageAttention, Wide, exported, write_archive

    store = folder / "store"
    checkout = shipped_archives(folder / "judged", sizes.overhead, store)
    wide = new_checkout(folder / WIDE, store)
    for where, name, model, shape in (
        (checkout, LAYERS, AverageAttention(sizes.layers), (1, LENGTH, WIDTH)),
        (wide, WIDE, Wide(sizes.wide_megabytes), (1, 1024)),
    ):
        write_config(where, name, name, ["forward"])
        archive = where.root / "models" / f"{name}.pt2"
        write_archive(archive, {"forward": exported(model, *shape)})
    told = _measured(checkout, sizes.overhead_repeats)
    weights = _measured(wide, sizes.overhead_repeats)
    ratio = _ratio(told, "cpu")
    notes = (
        f"{', '.join(told)}: {_ratio(told, 'wall') - 1:+.1%} of wall time",
        f"off varies by {_spread(told):.1%}",
        f"{sizes.wide_megabytes} MB of weights and little else: "
        f"{_ratio(weights, 'cpu') - 1:+.1%} of CPU time, "
        f"{_ratio(weights, 'wall') - 1:+.1%} of wall time",
    )
    return Result(
        case="miss-overhead",
        ratio=ratio,
        limit=1 + LIMIT,
        ok=ratio <= 1 + LIMIT,
        measured=f"{ratio - 1:+.1%} of CPU time",
        to_reach=f"<= {LIMIT:+.0%}",
        note="; ".join(notes),
        figures={
            "packages": told,
            WIDE: weights,
            "wall_ratio": _ratio(told, "wall"),
            "off_spread": _spread(told),
            "wide_cpu_ratio": _ratio(weights, "cpu"),
            "wide_wall_ratio": _ratio(weights, "wall"),
        },
    )


def _ratio(told: dict[str, Any], clock: str) -> float:
    """Return the ratio of on to off, each the sum over packages of the median time.

    The best time of a few runs varies by more than the limit.
    """
    on, off = (sum(median(each[side][clock]) for each in told.values()) for side in ("on", "off"))
    return on / off


def _spread(told: dict[str, Any]) -> float:
    """Return how far the median CPU time of `off` is above its best: the noise level."""
    offs = [each["off"]["cpu"] for each in told.values()]
    return sum(map(median, offs)) / sum(map(min, offs)) - 1


def _measured(checkout: Checkout, repeats: int) -> dict[str, Any]:
    command = [sys.executable, "-m", __name__, str(checkout.root), str(checkout.store)]
    output = run([*command, str(repeats)], checkout.root, checkout.environment).output
    return json.loads(output.splitlines()[-1])


# Runs in the measuring process


def main(root: Path, store: Path, repeats: int) -> dict[str, Any]:
    """Return the seconds of each repeat by package, side and clock, and the stages of `on`."""
    torch.set_num_threads(1)  # as in workers
    checkout = Checkout(root, store)
    return {p: _package(checkout, p, repeats) for p in plan_of(checkout).packages}


def _package(checkout: Checkout, package: str, repeats: int) -> dict[str, Any]:
    stages: dict[str, float] = {}

    def on() -> None:
        stages.clear()
        with_store(checkout, package, stages)

    def off() -> None:
        without_store(checkout, package)

    for side in (off, on):  # warms ExecuTorch up
        _timed(side, checkout)
    offs, ons = in_turns(repeats, lambda _: _timed(off, checkout), lambda _: _timed(on, checkout))
    clocks = ("wall", "cpu")
    sides = {
        name: {clock: rounded([each[i] for each in timed]) for i, clock in enumerate(clocks)}
        for name, timed in (("off", offs), ("on", ons))
    }
    return {**sides, "stages": {name: round(s, 4) for name, s in stages.items()}}


def _timed(side: Callable[[], None], checkout: Checkout) -> tuple[float, float]:
    """Return wall and CPU seconds, measured without garbage collection, as in workers."""
    from pipeline.run.worker_process import call_with_room

    for folder in (checkout.store, checkout.root / "build"):
        _set_aside(folder)
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        with contextlib.redirect_stdout(sys.stderr):
            call_with_room(side)  # as in workers
        return time.perf_counter() - wall, time.process_time() - cpu
    finally:
        gc.enable()
        gc.unfreeze()


def _set_aside(folder: Path) -> None:
    """Move a folder out of the way, without deleting it.

    For minutes after files are deleted, ext4 spends CPU time on each new file to avoid their inodes
    (`recently_deleted` in fs/ext4/ialloc.c), which no cold build on a fresh machine pays for.
    """
    if folder.exists():
        folder.rename(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))


def without_store(checkout: Checkout, package: str) -> None:
    from pipeline.backends import make_partitioners
    from pipeline.compile.emit import emit
    from pipeline.compile.lower import lower
    from pipeline.program.archive import load_program

    config = plan_of(checkout).config(package)
    archive = checkout.root / "models" / f"{config.model}.pt2"
    programs = {name: load_program(archive, name) for name in config.methods}
    partitioners = {n: make_partitioners(m.partitioners) for n, m in config.methods.items()}
    for name in config.methods:
        lowered = lower({name: programs[name]}, {name: partitioners[name]}, store=None)
        _ = emit(lowered).buffer


def with_store(checkout: Checkout, package: str, seconds: dict[str, float]) -> None:
    """Build a package through the store. Raises BenchmarkError if two partitions are equal."""
    from pipeline.compile.preprocess.cache import counted_preprocess
    from pipeline.compile.preprocess.spill import spilling
    from pipeline.run.build.link import link_package
    from pipeline.run.build.perform_compile import perform_compile
    from pipeline.run.install import install
    from pipeline.run.stages import Stages

    stages = Stages()
    with stages.stage("plan"):
        plan = plan_of(checkout)
        compiles, link = plan.compiles(package), plan.link(package)
    assert compiles is not None and link is not None
    with counted_preprocess() as counts, spilling():
        for action in compiles:
            perform_compile(action, plan.workspace, stages)
    if counts.hits or not counts.misses:
        raise BenchmarkError(f"{package}: {counts.hits} partitions found in an empty store")
    link_package(link, plan.workspace, stages, partial(install, plan.workspace, link))
    with stages.stage("plan"):
        plan.remember()
    seconds.update({name: end - begin for name, begin, end in stages.spans}, backend=counts.spent)


if __name__ == "__main__":
    measured = main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps(measured))
