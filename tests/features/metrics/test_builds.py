"""Metrics in builds: failures that agree, passes that diverge, and what 97 samples can't tell."""

import json

import pytest

from tests.support.bench import SAMPLES, Bench

pytestmark = pytest.mark.slow
MODEL = """
import torch

INPUTS = []


def build():
    torch.manual_seed(0)
    linear = torch.nn.Linear(4, 3)
    return torch.nn.Sequential(linear, torch.nn.Softmax(-1)).eval().requires_grad_(False)


def export_methods():
    return {"classify": torch.export.export(build(), (torch.ones(1, 4),))}


def example_inputs(method):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(1, 4, generator=generator),) for _ in range(2)]
"""
# 62 of 97 labels are what the model predicts.
TOP1 = """
import torch
from models.tiny import build

INPUTS = ["right.txt"]


def data(method):
    model = build()
    right = int(open("right.txt").read())
    generator = torch.Generator().manual_seed(7)
    for number in range(97):
        x = torch.randn(1, 4, generator=generator)
        best = int(model(x).argmax())
        yield x, best if number < right else (best + 1) % 3


def metric(outputs, labels):
    return sum(int(o.argmax()) == label for o, label in zip(outputs, labels)) / len(labels)
"""
CONFIG = """
model: tiny
methods: {{classify: {{partitioners: [xnnpack]{quantize}}}}}
validate: {{latency: {{seconds: 0}}, metrics: {{top1: {{{limits}}}}}}}
"""
INT8 = ", quantize: {quantizer: xnnpack, dynamic: true}"
CONFIGS = {
    "unjudged": {"quantize": "", "limits": "min: 0.71"},
    "wrong": {"quantize": "", "limits": "min: 90%"},
    "int8": {"quantize": INT8, "limits": "max_drop: 5%"},
}


def write_configs(bench, configs):
    for name, parts in configs.items():
        path = bench.root / "partition_configs" / f"{name}.yaml"
        path.write_text(CONFIG.format(**parts))


def count_scores(bench):
    """Return how often a metric ran, on a package or on a source, according to the store."""
    entries = (bench.store / "actions").rglob("*")
    texts = (path.read_text() for path in entries if path.is_file())
    return sum(json.loads(text)["key"].get("kind") == "metric" for text in texts)


def read_report(bench, package):
    return json.loads((bench.root / "build" / package / "report.json").read_text())


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("metrics"), allow="")
    for folder in ("models", "metrics", "partition_configs"):
        (bench.root / folder).mkdir()
    (bench.root / "dodo.py").write_text((SAMPLES / "pair" / "dodo.py").read_text())
    (bench.root / "models" / "tiny.py").write_text(MODEL)
    (bench.root / "metrics" / "top1.py").write_text(TOP1)
    (bench.root / "right.txt").write_text("62")
    write_configs(bench, CONFIGS)
    assert bench.doit() == 1, bench.output
    return bench


def test_62_of_97_is_no_verdict(built):
    report = read_report(built, "unjudged")
    (row,) = report["metrics"]
    assert report["verdict"] == row["verdict"] == "not judged"
    assert (row["value"], row["samples"], row["source"]) == (62 / 97, 97, 62 / 97)
    assert report["methods"][0]["verdict_reason"] == row["sentence"]
    assert "about 160 samples would settle it" in row["sentence"]


def test_numbers_can_agree_where_the_metric_fails(built):
    report = read_report(built, "wrong")
    assert report["methods"][0]["verdict"] == "passed" and report["verdict"] == "failed"
    failure = "metric top1: 0.639 (0.54 to 0.728) on 97 samples, at least 0.9 required"
    assert report["failures"] == [failure] and failure in built.output
    page = (built.root / "build" / "wrong" / "report.md").read_text()
    row = "| `top1` | **failed** | classify | 0.639 (0.54 to 0.728) | 0.639 (exported program) |"
    assert row in page


def test_numbers_can_diverge_where_the_metric_holds(built):
    report = read_report(built, "int8")
    (method,) = report["methods"]
    assert report["verdict"] == "passed" and method["sqnr_db"] < 80  # float32's limit
    assert method["quantization"]["verdict"] == "passed"
    assert method["quantization"]["reason"].startswith("within top1, drop of 0 (-0.028 to 0.028)")


def test_packages_of_a_model_share_the_scores_of_its_source(built):
    # The source and two packages; packages with the same bytes share a score.
    assert count_scores(built) == 3


def test_a_limit_reruns_nothing_and_data_do(built):
    write_configs(built, {"wrong": {"quantize": "", "limits": "min: 0.5, max_drop: 3%"}})
    assert built.doit("validate:wrong") == 0, built.output
    assert count_scores(built) == 3 and read_report(built, "wrong")["verdict"] == "passed"
    assert built.doit("explain", "wrong") == 0 and "current" in built.output
    (built.root / "right.txt").write_text("97")
    assert built.doit("validate:wrong") == 0, built.output
    (value, drop) = read_report(built, "wrong")["metrics"]
    assert value["value"] == 1 and drop["kind"] == "max_drop" and count_scores(built) == 5


def test_mistakes_are_lines(built):
    limits = {"quantize": "", "limits": "method: clasify"}
    write_configs(built, {"wrong": limits})
    assert built.doit("validate:wrong") != 0
    assert "no method 'clasify'; did you mean 'classify'?" in built.output
    path = built.root / "partition_configs" / "wrong.yaml"
    path.write_text(CONFIG.format(quantize="", limits="min: 1").replace("top1", "top2"))
    assert built.doit("validate:wrong") != 0
    fault = "no metric 'top2': there is no metrics/top2.py; did you mean 'top1'?"
    assert f"partition_configs/wrong.yaml:4: validate.metrics.top2: {fault}" in built.output
    path.write_text(CONFIG.format(quantize="", limits="min: 1"))
    metric = built.root / "metrics" / "top1.py"
    metric.write_text(TOP1.replace('INPUTS = ["right.txt"]', ""))
    assert built.doit("validate:wrong") == 1
    undeclared = "metric top1: metrics/top1.py: reads files that its INPUTS do not name: right.txt"
    assert undeclared in built.output
    metric.write_text(TOP1)
