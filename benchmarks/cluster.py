"""The cost of a cluster: two dask workers on this machine against the two workers of a plain build.

Both perform the same compile actions. Both sides are warm, and nothing comes from the store.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from benchmarks.measure import BenchmarkError, Result, in_turns, rounded
from benchmarks.workspaces import Sizes, plan_of, shipped_archives
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.run.pool import Pool
from pipeline.store.digest import Digest, hash_json

WORKERS = 2
SHARE_LIMIT, EACH_LIMIT = 1.05, 0.010  # of the time of a plain build; seconds per action


def cluster(folder: Path, sizes: Sizes) -> Result:
    """Measure the cluster. Raises BenchmarkError if a side fails or the results differ."""
    checkout = shipped_archives(folder / "workspace", sizes.cluster, folder / "store")
    plan = plan_of(checkout)
    actions = [each for package in sizes.cluster for each in plan.compiles(package) or ()]
    made: list[Mapping[Digest, Digest]] = []
    with _pool(plan, "", checkout.store) as here, _pool(plan, "dask", checkout.store) as there:

        def measure(pool: Pool) -> float:
            started = time.perf_counter()
            made.append(_run(plan, pool, actions))
            return time.perf_counter() - started

        for pool in (here, there):
            measure(pool)  # imports, and XNNPACK's pattern graphs
        ours, dask = in_turns(
            sizes.cluster_repeats, lambda _: measure(here), lambda _: measure(there)
        )
    if any(each != made[0] for each in made):
        raise BenchmarkError("a cluster and this machine make other objects")
    limit = SHARE_LIMIT * min(ours) + EACH_LIMIT * len(actions)
    each = (min(dask) - min(ours)) / len(actions)
    share = min(dask) / min(ours) - 1
    return Result(
        case="cluster",
        ratio=min(dask) / limit,
        limit=1.0,
        ok=min(dask) <= limit,
        measured=f"{1000 * each:+.0f} ms an action ({100 * share:+.1f} %), same objects",
        to_reach="<= +5 % + 10 ms an action, same objects",
        note=f"{len(actions)} compile actions by {WORKERS} workers in {min(dask):.2f} s, by this "
        f"machine's in {min(ours):.2f} s",
        figures={"here_seconds": rounded(ours), "cluster_seconds": rounded(dask)},
    )


@contextmanager
def _pool(plan: Plan, executor: str, store: Path) -> Iterator[Pool]:
    """Yield a pool whose workers use this store, even if a cluster starts them."""
    workspace = replace(plan.workspace, executor=executor, jobs=WORKERS)
    with patch.dict(os.environ, {"PTE_PIPELINE_STORE": str(store)}):
        pool = Pool(workspace, WORKERS, always=True)
        try:
            yield pool
        finally:
            pool.close()


def _run(plan: Plan, pool: Pool, actions: Sequence[Action]) -> dict[Digest, Digest]:
    """Run actions and return the digest of each result."""
    for action, report in pool.run(actions):
        if report.event.error:
            raise BenchmarkError(f"{action.title}: {report.event.error}")
    found = {action.digest: plan.workspace.store.get(action.digest) for action in actions}
    return {digest: hash_json(entry.result) for digest, entry in found.items() if entry}
