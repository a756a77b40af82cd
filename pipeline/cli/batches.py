"""Batches of actions with workers of their own, for verbs that build outside doit's run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TextIO

from pipeline.cli.progress import progress_on
from pipeline.plan.plan import Plan
from pipeline.run.batch import Batch
from pipeline.run.pool import Pool


@contextmanager
def open_batch(plan: Plan, stream: TextIO) -> Iterator[Batch]:
    """Yield a batch whose progress is shown on a stream and whose workers end with the block."""
    with (
        closing(Pool(plan.workspace, plan.workspace.jobs, always=False)) as pool,
        closing(Batch(plan, pool, partial(progress_on, stream))) as batch,
    ):
        yield batch
