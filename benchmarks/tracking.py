"""What it costs to see all that an exporter reads, in warm processes of its own.

    python -m benchmarks.tracking WORKSPACE STORE REPEATS

Off: an exporter runs in a fork of this process, which stores its programs and inputs. On: the same,
with all that tells its inputs: the fork is watched, by the kernel or by Python's audit events, its
inputs are found and hashed, and recorded. This process collects garbage as a worker does, where
torch's own objects are left alone: otherwise a fork copies their pages whenever it collects, which
the one side does once more than the other. CPU time is judged, of this process and its children:
the median of what one side takes more in a turn. Each time some memory is taken before, so that
Python's arenas fill at other moments: how often one is given back and taken again is a matter of
chance, and can cost a fork a tenth of its time, always the same side in one process. For the same
reason there are several processes, one after the other, whose turns count together.
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
_LEAST = 6  # seconds for which small exports are repeated in each process


def tracking(folder: Path, sizes: Sizes) -> Result:
    """The model that it costs most is judged, by the view that costs more."""
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


# In the process that measures


def main(root: Path, store: Path, repeats: int, models: list[str]) -> dict[str, Any]:
    """Return CPU seconds by model and side, one for each repeat."""
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
        Store(checkout.store).put(b"")  # as in a store that was used before
        chance = [bytes(size) for size in range(0, 480, 16) for _ in range(random.randrange(2000))]
        before = _cpu()
        with contextlib.redirect_stdout(sys.stderr):
            side(model)
        del chance
        return _cpu() - before

    for side in sides.values():
        timed(side, 0)  # torch and ExecuTorch warm up
    taken = max(timed(side, 0) for side in sides.values())
    repeats = max(repeats, int(_LEAST / taken / len(sides)))
    with worker_process(seldom=True):
        turns = in_turns(repeats, *(partial(timed, side) for side in sides.values()))
    return {name: rounded(each) for name, each in zip(sides, turns, strict=True)}


def _cpu() -> float:
    """Return the CPU seconds of this process and of those of its children that have ended."""
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
