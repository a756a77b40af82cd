"""Cluster workers that stop answering, or that give false answers."""

import json
import os
import signal
import subprocess
from types import SimpleNamespace

import pytest

from pipeline.features.cluster.answers import Answers
from pipeline.features.cluster.heartbeats import Heartbeats
from pipeline.store.errors import PipelineError
from tests.features.cluster.test_cluster import SLOW, wait_until_under_way
from tests.support.cluster import running_cluster

ENDING = {"log": "", "worker": "tcp://a:1", "host": "a"}
NESTED = "[" * 200_000
ANSWERS = {
    "a number": 3,
    "nothing": None,
    "bytes": b"{}",
    "a list": ["{}"],
    "no JSON": "{",
    "deep JSON": NESTED,
    "deep JSON in a field": json.dumps(ENDING)[:-1] + ', "done": ' + NESTED,
    "another type": "3",
    "no ending": json.dumps(ENDING),
    "two endings": json.dumps({**ENDING, "missing": "a", "lost": {}}),
    "a wrong ending": json.dumps({**ENDING, "done": 3}),
    "half a surrogate": json.dumps({**ENDING, "missing": "\ud800"}),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_of_another_form_is_refused_in_a_line(answer):
    with pytest.raises(PipelineError) as caught:
        Answers(SimpleNamespace()).read(SimpleNamespace(), answer)
    assert str(caught.value) in (
        "its worker's answer is not JSON",
        "its worker's answer has an unknown form",
    )


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until a test moves it."""
    now = SimpleNamespace(seconds=1000.0)
    clock = SimpleNamespace(monotonic=lambda: now.seconds)
    monkeypatch.setattr("pipeline.features.cluster.heartbeats.time", clock)
    return now


def test_a_silent_worker_is_reported_once_and_given_up_later(clock):
    heartbeats = Heartbeats(timeout=180)
    for second in range(0, 200, 2):
        clock.seconds = 1000.0 + second
        heartbeats.note({"a": {"last_seen": 7.0}, "b": {"last_seen": clock.seconds - 5000}})
        news = heartbeats.find_news()
        assert news == (["a"] if second == 62 else [])
        assert heartbeats.find_silent() == (["a"] if second > 180 else [])
    assert heartbeats.describe("a") == (
        "worker a has not answered for 198 s; its actions move to another worker after 180 s "
        "(`worker_timeout`)"
    )
    heartbeats.note({"a": {"last_seen": 8.0}})
    assert not heartbeats.find_silent() and not heartbeats.is_overdue()


def test_a_driver_that_was_stopped_itself_gives_nobody_up(clock):
    heartbeats = Heartbeats(timeout=180)
    heartbeats.note({"a": {"last_seen": 7.0}})
    clock.seconds += 3600
    assert heartbeats.is_overdue()
    heartbeats.note({"a": {"last_seen": 7.0}})
    assert not heartbeats.find_silent() and not heartbeats.find_news()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def driver(built, cluster, request):
    """A build with a slow lowering on the cluster, which gives a worker up within seconds."""
    (built.root / "passes").mkdir()
    (built.root / "passes" / "slow.py").write_text(SLOW)
    (built.root / "partition_configs" / "pair.yaml").write_text(
        "model: pair\nmethods:\n"
        "  encode: {partitioners: [], edge: {passes: ['slow:Waits': "
        f"{{seconds: 4.0, name: {request.node.name}}}]}}}}\n"
        "  decode: omit\n"
    )
    variables = {
        **built.environment,
        **cluster.remote,
        "PTE_PIPELINE_EXECUTOR": cluster.address,
        "PTE_PIPELINE_WORKER_TIMEOUT": "6",
    }
    process = subprocess.Popen(
        built.command("lower"),
        cwd=built.root,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    yield built, process
    process.kill()
    process.wait(10)


@pytest.mark.slow
def test_what_a_stopped_worker_runs_moves_to_another(driver, cluster):
    built, process = driver
    worker = wait_until_under_way(cluster, "encode")
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        output, _ = process.communicate(timeout=90)
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    assert process.returncode == 0, output
    (line,) = [line for line in output.splitlines() if "has not answered for" in line]
    assert line.endswith("actions move to another worker after 6 s (`worker_timeout`)")
    assert "Traceback" not in output + cluster.log()
    assert built.outcomes()["compile pair/encode"] == "built"


@pytest.mark.slow
def test_a_stopped_scheduler_ends_the_run(driver, cluster):
    """This test comes last, since it stops the cluster's scheduler."""
    _, process = driver
    wait_until_under_way(cluster, "encode")
    cluster.scheduler.send_signal(signal.SIGSTOP)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 1, output
    assert f"the scheduler {cluster.address} stopped answering" in output
    assert "Traceback" not in output
