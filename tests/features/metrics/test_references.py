"""The source of a metric is the PyTorch module itself if the exporter names it."""

import json

import pytest

from tests.support.bench import SAMPLES, Bench

pytestmark = pytest.mark.slow
# The module sums its inputs, as the export does, and adds 1 to sums above 2.
MODEL = """
import torch
from torch import nn
from torch.export import export


class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(1))
        self.register_buffer("bias", torch.zeros(1))

    def forward(self, x):
        self.total += x
        return {"total": self.total + self.bias}


class Eager(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = Count()

    def forward(self, x):
        self.module.bias[0] = float(x.max() > 2)
        return self.module(x)


def export_methods():
    return {"count": (export(Count().eval(), (torch.ones(1),)), Eager().eval())}


def example_inputs(method):
    return [(torch.ones(1),), (torch.full((1,), 2.0),)]
"""
METRIC = """
import torch

INPUTS = []


def data(method):
    for number in range(40):
        yield float(number % 4), 2.0 * (number % 4)


def predict(package, inputs):
    package.count(torch.full((1,), inputs))
    return float(package.count(torch.full((1,), inputs))["total"])


def metric(outputs, labels):
    return sum(output == label for output, label in zip(outputs, labels)) / len(labels)
"""
CONFIG = """
model: counter
methods: {count: {partitioners: [xnnpack]}}
validate: {latency: {seconds: 0}, metrics: {exact: {min: 0.5}}}
"""


def read_row(bench):
    report = json.loads((bench.root / "build" / "counter" / "report.json").read_text())
    return report["metrics"][0]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("references"))
    for name, text in {
        "dodo.py": (SAMPLES / "pair" / "dodo.py").read_text(),
        "models/counter.py": MODEL,
        "metrics/exact.py": METRIC,
        "partition_configs/counter.yaml": CONFIG,
    }.items():
        (bench.root / name).parent.mkdir(exist_ok=True)
        (bench.root / name).write_text(text)
    bench.doit("counter")
    return bench


def test_the_module_is_run_from_its_initial_state_for_each_sample(bench):
    row = read_row(bench)
    # The export is right on all samples, the module on those up to 2.
    assert (row["against"], row["source"], row["value"]) == ("PyTorch", 0.75, 1), bench.output
    page = bench.bytes_of("counter", "report.md").decode()
    assert "0.75 (PyTorch)" in page


@pytest.mark.release
def test_an_edit_of_the_exporter_runs_its_module_again(bench):
    bench.edit("models/counter.py", "x.max() > 2", "x.max() > 1")
    bench.doit("counter")
    assert (read_row(bench)["source"], read_row(bench)["value"]) == (0.5, 1), bench.output
    old = "        self.module.bias"
    bench.edit("models/counter.py", old, f"        assert x < 3\n{old}")
    assert bench.doit("counter") == 1
    assert "metric exact: metrics/exact.py: sample 3: AssertionError" in bench.output
