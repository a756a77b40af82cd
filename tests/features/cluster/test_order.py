"""The order in which a cluster's workers take actions."""

import shutil
import time

import dask
import pytest

from pipeline.features.cluster import executor
from pipeline.plan.plan import Plan
from pipeline.store.workspace import open_workspace
from tests.support.bench import SAMPLES

CONFIG = "model: one\nmethods: {encode: {partitioners: []}}\n"
MANY = 20


@pytest.fixture
def take(tmp_path, monkeypatch):
    """Return a function that submits actions to workers and returns when each began and ended.

    An action only sleeps, for the seconds in `seconds`.
    """
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(tmp_path / "store"))
    (tmp_path / "partition_configs").mkdir()
    (tmp_path / "partition_configs" / "one.yaml").write_text(CONFIG)
    shutil.copytree(SAMPLES / "archives" / "models", tmp_path / "models")
    workspace = open_workspace(tmp_path)
    [action] = Plan(workspace).compiles("one")
    taken = tmp_path / "taken"
    taken.mkdir()

    def take(workers, seconds):
        def perform(number):
            began = time.time()
            time.sleep(seconds.get(number, 0))
            (taken / str(number)).write_text(f"{began} {time.time()}")
            return "no answer"

        def pack(action):
            number = next(numbers)
            time.sleep(0.1 if number == 0 else 0)
            return number

        monkeypatch.setattr(executor, "perform", perform)
        cluster = executor.ClusterExecutor(workspace, workers, False, "dask")
        numbers = iter(range(MANY))
        monkeypatch.setattr(cluster._packer, "pack", pack)
        try:
            promises = [cluster.submit(action, 0) for _ in range(MANY)]
            errors = {promise.result(60).event.error for promise in promises}
        finally:
            cluster.close()
        assert errors == {"its worker's answer is not JSON"}
        return [
            [float(moment) for moment in (taken / str(number)).read_text().split()]
            for number in range(MANY)
        ]

    return take


def test_a_worker_takes_actions_in_the_order_of_their_submission(take):
    """The pool submits the longest first."""
    begins = [began for began, _ in take(1, {})]
    assert begins == sorted(begins)


def test_hardly_an_action_waits_for_a_busy_worker(take):
    """Otherwise half of them would, unless dask moves them, which takes it up to a second."""
    with dask.config.set({"distributed.scheduler.work-stealing": False}):
        times = take(2, {0: 4.0})
    _, ended = times[0]
    assert sum(began > ended for began, _ in times) <= 1
