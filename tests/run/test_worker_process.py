"""Worker processes: calls in their order, and how one ends."""

import os
import signal
import sys
import time
from types import MappingProxyType

import pytest

from pipeline.run.executors.process import WorkerDiedError, WorkerProcess
from pipeline.run.worker_group import WorkerGroup


@pytest.fixture
def worker():
    group = WorkerGroup()
    worker = WorkerProcess(group.number, {"OF_THE_WORKER": "yes"})
    yield worker
    group.close()
    worker.close()


def test_calls_are_made_in_their_order_in_a_process_of_their_own(worker):
    numbers = [worker.submit(os.getpid) for _ in range(3)]
    [pid] = {number.result() for number in numbers}
    assert pid != os.getpid() and worker.alive
    assert worker.submit(os.getenv, "OF_THE_WORKER").result() == "yes"
    assert worker.submit(dict, MappingProxyType({"a": 1})).result() == {"a": 1}
    assert worker.submit(eval, "__import__('sys').argv").result() == ["-c"]
    assert worker.submit(eval, "__import__('sys').path").result() == sys.path


@pytest.mark.parametrize("end", ["SIGKILL(-9)", "SIGSEGV(-11)", "EXIT(3)"])
def test_a_worker_that_ends_says_how_though_what_it_started_lives(worker, end):
    child = worker.submit(os.spawnlp, os.P_NOWAIT, "sleep", "sleep", "600").result()
    forked = worker.submit(eval, "__import__('os').fork() or __import__('time').sleep(600)")
    assert forked.result() > 0
    pid = worker.submit(os.getpid).result()
    if end == "EXIT(3)":
        under_way = worker.submit(os._exit, 3)
    else:
        under_way = worker.submit(time.sleep, 600)
        os.kill(pid, getattr(signal, end.partition("(")[0]))
    assert str(under_way.exception(5)) == end and not worker.alive
    assert isinstance(worker.submit(os.getpid).exception(5), WorkerDiedError)
    os.kill(child, 0)
