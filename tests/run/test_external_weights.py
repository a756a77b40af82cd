"""Weights in `.ptd` files, from an exporter's tags or through the config, built by doit."""

import json

import pytest
import torch

from pipeline import load_package
from tests.support.lowerable import bench_for

EXPORTER = """
import torch
from torch import nn
from torch.export import export


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(4, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.head(self.table(x))


def export_methods():
    program = export(Words().eval().requires_grad_(False), (torch.tensor([1, 2]),))
    for node in program.graph.find_nodes(op="placeholder"):
        if TAG and node.name.startswith("p_head"):
            node.meta["custom"] = {"delegate_constant_tag": TAG}
    return {"run": program}
"""


@pytest.mark.slow
def test_tagged_weights_leave_the_package_and_it_runs(tmp_path):
    methods = {"run": {"partitioners": ["xnnpack"]}}
    configs = {
        "tagged": {"model": "tagged", "methods": methods},
        "config": {"methods": methods, "emit": {"external_weights": {"foundation": ["head"]}}},
        "all": {"methods": methods, "emit": {"external_weights": True}},
    }
    bench = bench_for(tmp_path / "w", configs)
    for model, tag in (("tagged", "foundation"), ("small", "")):
        (bench.root / "models" / f"{model}.py").write_text(f"TAG = {tag!r}\n{EXPORTER}")
    assert bench.doit() == 0, bench.output
    data = bench.bytes_of("tagged", "foundation.ptd")
    assert bench.bytes_of("config", "foundation.ptd") == data
    assert bench.bytes_of("config", "config.pte") == bench.bytes_of("tagged", "tagged.pte")
    assert len(bench.bytes_of("all", "weights.ptd")) >= len(data) + 4 * 8 * 4  # the table too
    for package, name in (("tagged", "foundation.ptd"), ("all", "weights.ptd")):
        manifest = json.loads(bench.bytes_of(package, "manifest.json"))
        assert name in manifest["files"]
        assert json.loads(bench.bytes_of(package, "report.json"))["ok"]
        pte = next((bench.root / "build" / package).glob("*.pte"))
        assert load_package(pte)["run"](torch.tensor([1, 2])).shape == (2, 8)
