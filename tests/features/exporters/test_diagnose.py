"""`doit diagnose` reports everything that torch.export refuses in a model, with lines; for models
in forms that can't be built, it says what to do instead."""

import json

import pytest

from pipeline.plan.plan import Plan
from pipeline.program.sources import find_sources
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.features.schemas.test_json_output import validate

REFUSED = """
import torch
from torch import nn
from torch.export import export


@torch.library.custom_op("shop::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


class Branch(nn.Module):
    def forward(self, x, n):
        size = n.item()
        if size > 2:
            x = x[:size] + 1
        return x


class Custom(nn.Module):
    def forward(self, x):
        return halve(x) + 1


def export_methods():
    yield "sound", export(nn.Linear(3, 3), (torch.ones(1, 3),))
    yield "branch", export(Branch(), (torch.ones(8, 3), torch.tensor(3)))
    yield "custom", export(Custom(), (torch.ones(2, 3),))
"""
CONFIG = "model: detector\nmethods: {sound: {partitioners: []}}\n"


@pytest.mark.slow
def test_all_refusals_have_a_line_and_a_remedy(bench):
    workspace = bench("pair")
    (workspace.root / "models" / "detector.py").write_text(REFUSED)
    (workspace.root / "partition_configs" / "detector.yaml").write_text(CONFIG)
    assert workspace.doit("export", "detector") == 1
    assert (
        "`doit diagnose detector` lists everything in it that torch.export rejects"
        in workspace.output
    )
    assert workspace.doit("diagnose", "detector", "--json") == 1
    line, error = workspace.output.splitlines()
    record = json.loads(line)
    validate("diagnose", record)
    (model,) = record["models"]
    assert [bool(call["error"]) for call in model["exports"]] == [False, True, True]
    assert [call["place"] for call in model["exports"]] == [
        f"models/detector.py:{line}" for line in (26, 27, 28)
    ]
    ((branch,), (custom,)) = (call["findings"] for call in model["exports"][1:])
    assert (branch["place"], branch["code"]) == ("models/detector.py:15", "if size > 2:")
    assert branch["what"].startswith("depends on the values of a tensor: u0 > 2, which was True;")
    assert (custom["place"], custom["kind"]) == ("models/detector.py:22", "missing fake kernel")
    assert '@torch.library.register_fake("shop::halve")' in custom["what"]
    assert error.startswith("diagnose: torch.export can't export detector")


@pytest.mark.slow
@pytest.mark.release
def test_a_sound_model_and_one_that_is_not_there(bench):
    workspace = bench("pair")
    assert workspace.doit("diagnose", "pair") == 0
    assert workspace.output == "pair: torch.export accepts everything that it exports\n"
    assert workspace.doit("diagnose", "pear") == 1
    assert "no model with an exporter 'pear'; did you mean 'pair'?" in workspace.output


def test_a_model_of_another_form_is_told_what_to_do(bench):
    root = bench("pair").root
    (root / "partition_configs" / "pair.yaml").write_text(CONFIG.replace("detector", "speech"))
    for ending in (".onnx", ".pt", ".pth"):
        file = root / "models" / f"speech{ending}"
        file.write_bytes(b"")
        (problem,) = Plan(Workspace(root, Store(root / ".store"), 1)).problems("pair")
        assert problem.what.startswith(f"models/speech{ending}: ")
        assert problem.what.endswith("; write models/speech.py, which exports its module")
        file.rename(root / "models" / f"checkpoint{ending}")
    (root / "models" / "checkpoint.py").write_bytes(b"")
    assert "checkpoint" in find_sources(root / "models")[0]
