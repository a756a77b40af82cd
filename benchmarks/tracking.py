"""The cost of seeing everything that an exporter reads, in separate warm processes.

    python -m benchmarks.tracking WORKSPACE STORE REPEATS

Off: an exporter runs in a fork of this process, which stores its programs and inputs. On: the same,
but its inputs are traced as well: the kernel or Python's audit events watch the fork, and its
inputs are found, hashed and recorded. This process collects garbage as a worker does, which leaves
torch's objects alone: otherwise a fork copies their pages at each collection, and one side has one
collection more than the other. The CPU time of this process and its children is judged: the median
of what one side takes more in a turn. Before each run some memory is taken, so that Python's arenas
fill up at other moments: how often one is freed and allocated again is random, and can cost a fork
a tenth of its time, always on the same side within one process. For the same reason several
processes run one after the other, and their turns count together.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import shutil
import sys
from collections.abc import Callable
from functools import partial
from operator import sub
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.measure import Result, in_turns, rounded, run
from benchmarks.workspaces import Checkout, Sizes, models_of, plan_of, shipped_exporters
from pipeline.store.store import Store

LIMIT = 0.05
VIEWS = ("kernel", "audit")
_LEAST = 6  # seconds to repeat small exports in each process


def tracking(folder: Path, sizes: Sizes) -> Result:
    """Judge the model with the highest cost, with whichever way of watching costs more."""
    checkout = shipped_exporters(folder / "workspace", sizes.shipped)
    command = [sys.executable, "-m", __name__, str(checkout.root), str(checkout.store)]
    command += [str(sizes.export_repeats), *models_of(sizes.shipped)]
    told: dict[str, dict[str, list[float]]] = {}
    for _ in range(sizes.export_processes):
        output = run(command, checkout.root, checkout.environment).output
        for name, sides in json.loads(output.splitlines()[-1]).items():
            for side, taken in sides.items():
                told.setdefault(name, {}).setdefault(side, []).extend(taken)
    added = {
        (model, view): median(map(sub, sides[view], sides["off"]))
        for model, sides in told.items()
        for view in VIEWS
        if view in sides
    }
    seconds = {model: median(sides["off"]) for model, sides in told.items()}
    ratios = {(model, view): 1 + each / seconds[model] for (model, view), each in added.items()}
    (model, view), ratio = max(ratios.items(), key=lambda each: each[1])
    lines = [
        f"{name} {seconds[name]:.3f} s, {by} {ratios[name, by] - 1:+.1%} ({1000 * each:+.1f} ms)"
        for (name, by), each in added.items()
    ]
    return Result(
        case="tracking",
        ratio=ratio,
        limit=1 + LIMIT,
        ok=ratio <= 1 + LIMIT,
        measured=f"{ratio - 1:+.1%} of CPU time ({model}, {view})",
        to_reach=f"<= {LIMIT:+.0%}",
        note="; ".join(lines),
        figures=told,
    )


# Runs in the measuring process


def main(root: Path, store: Path, repeats: int, models: list[str]) -> dict[str, Any]:
    """Return the CPU seconds of each repeat, by model and side."""
    import torch

    from pipeline.features.tracing.tracer import has_kernel_view

    torch.set_num_threads(1)  # as in workers
    checkout = Checkout(root, store)
    sides: dict[str, Callable[[str], None]] = {"off": partial(_untracked, checkout)}
    for view in VIEWS if has_kernel_view() else VIEWS[1:]:
        sides[view] = partial(_tracked, checkout, view == "kernel")
    return {model: _model(checkout, model, sides, repeats) for model in models}


def _model(
    checkout: Checkout, model: str, sides: dict[str, Callable[[str], None]], repeats: int
) -> dict[str, list[float]]:
    from pipeline.run.worker_process import worker_process

    def timed(side: Callable[[str], None], repeat: int) -> float:
        shutil.rmtree(checkout.store, ignore_errors=True)
        Store(checkout.store).put(b"")  # as in a store that has been used
        chance = [bytes(size) for size in range(0, 480, 16) for _ in range(random.randrange(2000))]
        before = _cpu()
        with contextlib.redirect_stdout(sys.stderr):
            side(model)
        del chance
        return _cpu() - before

    each_side = [partial(timed, side) for side in sides.values()]
    in_turns(1, *each_side)  # warms up with the callers that stack traces will quote
    taken = max(map(max, in_turns(1, *each_side)))
    repeats = max(repeats, int(_LEAST / taken / len(sides)))
    with worker_process(seldom=True):
        turns = in_turns(repeats, *each_side)
    return {name: rounded(each) for name, each in zip(sides, turns, strict=True)}


def _cpu() -> float:
    """Return the CPU seconds of this process and its finished children."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


def _tracked(checkout: Checkout, kernel: bool, model: str) -> None:
    from pipeline.features.exporters.export import export
    from pipeline.features.tracing import tracer
    from pipeline.run.stages import Stages

    plan = plan_of(checkout)
    with patch.object(tracer, "has_kernel_view", lambda: kernel):
        export(plan.models.export(model), plan.workspace, Stages())


def _untracked(checkout: Checkout, model: str) -> None:
    from pipeline.features.exporters.export import run_exporter, store_exported
    from pipeline.features.exporters.handover import handing_over
    from pipeline.run.stages import Stages

    plan = plan_of(checkout)
    action = plan.models.export(model)
    store, text = plan.workspace.store, (checkout.root / action.inputs.path).read_bytes()
    with handing_over(store) as handover:
        made = run_exporter(action, checkout.root, text, handover, Stages())
        store.put_result(action.key, store_exported(made, handover, store))


if __name__ == "__main__":
    measured = main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    print(json.dumps(measured))
