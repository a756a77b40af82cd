"""Makes a call in the fresh process that received it, after importing what a worker imports."""

from __future__ import annotations

import os
import pickle

from pipeline.run.imports import keeping_all
from pipeline.run.isolated import ForkWatch
from pipeline.run.worker_process import import_libraries


def run_sent(descriptor: int) -> None:
    """Read the call from an open file and make it; the call ends this process."""
    os.set_inheritable(descriptor, False)
    with keeping_all():
        import_libraries(fast_lowering=False)
        with open(descriptor, "rb") as file:
            run, surroundings, ForkWatch.scratch = pickle.load(file)
    with surroundings():
        run()
