"""New processes instead of forks, as on a Mac. `PTE_PIPELINE_TEST_SPAWN` forces them.

An exporter's packages have the same bytes as with a fork; `test_trace.py` and `test_scoring.py`
pass with the variable as well as without it.
"""

import io
import json
import os
import pickle
import signal
import socket
from multiprocessing.connection import Pipe

import pytest
import torch

from pipeline.features.exporters.announced_deaths import run_announced
from pipeline.features.exporters.handover import handing_over
from pipeline.features.metrics.calls import CallServer
from pipeline.features.references.reference_state import keep_state
from pipeline.features.spawning.start import _CallPickler
from pipeline.run.isolated import ChildError
from pipeline.store.errors import SourceError
from pipeline.store.store import Store
from tests.support.bench import Bench

SPAWN = "PTE_PIPELINE_TEST_SPAWN"
# The first reference ends its process on large values, and counts its calls.
MODEL = """
import os, signal
import torch
from torch import nn
from torch.export import export

INPUTS = []


class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls.add_(1)
        return self.linear(x) + self.calls


class Deadly(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        if float(x.abs().max()) > 100:
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.module(x)


def export_methods():
    torch.manual_seed(0)
    count = Count().requires_grad_(False)
    yield "count", export(count, (torch.ones(1, 4),)), Deadly(count)
    yield "again", export(count, (torch.ones(1, 4),)), count


def example_inputs(method):
    return [(torch.ones(1, 4),), (torch.zeros(1, 4),)]
"""
ENDINGS = {
    "failing": "raise ValueError('no weights')",
    "killed": "import os\nos.kill(os.getpid(), 11)",
}


def send(value, descriptors):
    """Return what a new process would receive, through descriptors of this process."""
    file = io.BytesIO()
    pickler = _CallPickler(file)
    pickler.dump(value)
    assert pickler.descriptors == descriptors
    return pickle.loads(file.getvalue())


def test_files_and_sockets_go_by_their_descriptors(tmp_path):
    """The process closes the files that it receives, so the originals must not close them again."""
    here, there = socket.socketpair()
    left, right = Pipe()
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    file = open(descriptor, "w+b", closefd=False)  # noqa: SIM115
    descriptors = {descriptor, there.fileno(), right.fileno()}
    sent_file, line, connection = send((file, there, right), descriptors)
    there.detach()
    right._handle = None
    with here, line, left, connection, sent_file:
        sent_file.write(b"answer")
        sent_file.flush()
        line.sendall(b"word")
        connection.send_bytes(b"call")
        assert here.recv(9) == b"word" and left.recv_bytes() == b"call"
    assert (tmp_path / "file").read_bytes() == b"answer"


def test_what_only_the_first_process_calls_stays_there(tmp_path):
    with socket.socket() as line:  # a function with a value that can't be pickled
        calls = CallServer(["f"], lambda *_: line.fileno(), line.close, 5.0)
        assert send(calls, set()).methods == ("f",)
    with handing_over(Store(tmp_path / "store")) as handover:
        handover.put(b"of a process that died")
        handover.empty()
        assert (os.path.getsize(handover._blobs.name), handover._blobs.tell()) == (0, 0)


@pytest.mark.parametrize("label", ["f on zeros", ""])
def test_an_announced_death_is_left_out_of_the_next_run(tmp_path, monkeypatch, label):
    monkeypatch.setenv(SPAWN, "1")
    tries = []

    def run(announcements):
        tries.append(dict(announcements.deaths))
        if label in announcements.deaths:
            return {"deaths": announcements.deaths}
        announcements.announce("f on ones, which went well")
        announcements.announce(label)
        raise ChildError("its process died", signal.SIGSEGV)

    with handing_over(Store(tmp_path / "store")) as handover:
        if label:
            assert run_announced(run, handover) == {"deaths": {label: "SIGSEGV"}}
            assert tries == [{}, {label: "SIGSEGV"}]
            return
        with pytest.raises(ChildError):
            run_announced(run, handover)


def test_what_a_reference_changed_for_good_is_an_error():
    module = torch.nn.Linear(1, 1)
    module.register_buffer("calls", torch.zeros(1))
    restore = keep_state([module])
    module.calls += 1
    restore()
    assert module.calls == 0
    with torch.no_grad():
        module.weight += 1
    with pytest.raises(SourceError, match="a reference changes a parameter in place"):
        restore()


@pytest.fixture
def shop(tmp_path):
    texts = {"dodo.py": "from pte_pipeline.tasks import *\n", "models/count.py": MODEL}
    for name, statement in ENDINGS.items():
        body = statement.replace("\n", "\n    ")
        texts[f"models/{name}.py"] = f"def export_methods():\n    {body}\n"
        texts[f"partition_configs/{name}.yaml"] = (
            f"model: {name}\nmethods: {{forward: {{partitioners: []}}}}\n"
        )
    texts["partition_configs/count.yaml"] = (
        "model: count\nmethods: {count: {partitioners: [xnnpack]}, again: {partitioners: []}}\n"
        "emit: {memory_planning: {share_mutable_buffers: false}}\n"
    )
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return Bench(tmp_path)


@pytest.mark.slow
@pytest.mark.release
def test_packages_are_those_of_forked_exporters(shop):
    """One reference dies and is left out, and its module continues; exporters fail and die."""
    spawned = {SPAWN: "1"}
    shop.doit(**spawned)
    assert shop.outcomes()["validate count"] == "built", shop.output
    assert "models/failing.py:2: `raise ValueError('no weights')`: ValueError" in shop.output
    assert "export:killed failed in stage 'run the exporter': its process died" in shop.output
    files = [shop.bytes_of("count", "count.pte"), read_references(shop)]
    assert b"ends its process (SIGSEGV)" in shop.bytes_of("count", "report.json"), shop.output
    assert shop.doit("count", **spawned) == 0 and "up to date: 1 package" in shop.output
    shop.doit("count", "-a")
    assert [shop.bytes_of("count", "count.pte"), read_references(shop)] == files, shop.output


def read_references(bench):
    report = json.loads(bench.bytes_of("count", "report.json"))
    return [method["reference"] for method in report["methods"]]
