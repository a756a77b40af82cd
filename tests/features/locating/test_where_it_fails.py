"""A package damaged on disk after its build: validation says where, and leaves a reproduction."""

import json
from pathlib import Path

import pytest
import torch
from torch.export.pt2_archive._package import package_pt2

from pipeline.features.add_sub import runtime as add_sub
from pipeline.features.locating.reproduce import main
from pipeline.plan.kinds.validate import ValidateInputs, validate_action
from pipeline.plan.plan import Plan
from pipeline.run.perform import perform
from pipeline.run.stages import Stages
from pipeline.store import digest
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.devices.test_bindings import exported
from tests.features.locating.test_locate import Chain, Net, V, X, line_of

CONFIG = """
model: net
methods:
  run: {partitioners: []}
  sum: {partitioners: [add_sub]}
validate: {atol: 1.0e-5, rtol: 1.0e-5, inputs: 1}
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    root = tmp_path_factory.mktemp("where")
    (root / "models").mkdir()
    (root / "partition_configs").mkdir()
    (root / "partition_configs" / "pack.yaml").write_text(CONFIG)
    programs = {"run": exported(Net(), X), "sum": exported(Chain(), V, V)}
    package_pt2(str(root / "models" / "net.pt2"), exported_programs=programs)
    workspace = Workspace(root, Store(root / ".store"), 1)
    plan = Plan(workspace)
    for action in plan.compiles("pack"):
        perform(action, workspace, Stages(), False)
    perform(plan.link("pack"), workspace, Stages(), False)
    return workspace


def file_of(workspace):
    return workspace.package("pack") / "pack.pte"


def validated(workspace):
    """Validate the files on disk without rebuilding them; return the record and the error."""
    plan = Plan(workspace)
    files = {"pack.pte": digest.hash_file(file_of(workspace))}
    action = validate_action(ValidateInputs(plan.config("pack"), files, plan.methods("pack")))
    error = ""
    try:
        perform(action, workspace, Stages(), True)
    except PipelineError as failed:
        error = str(failed)
    return json.loads((workspace.package("pack") / "report.json").read_bytes()), error


def culprits(record, name):
    (method,) = [each for each in record["methods"] if each["method"] == name]
    return method["culprits"]


def test_a_byte_that_was_changed_on_disk(workspace, capsys):
    path = file_of(workspace)
    right = path.read_bytes()
    weight = Net().second.weight.detach().contiguous().view(torch.uint8).flatten().tolist()
    changed = bytearray(right)
    changed[right.index(bytes(weight)) + 2] ^= 0x40
    path.unlink()
    path.write_bytes(bytes(changed))
    record, error = validated(workspace)
    assert error.startswith("package, numerics: pack.pte does not match the manifest's digest")
    assert record["failures"][1].startswith("run: ")
    assert culprits(record, "sum") == []
    (culprit,) = culprits(record, "run")
    assert (culprit["operator"], culprit["module"]) == ("aten.linear.default", "second")
    assert culprit["kind"] == "operator"
    line = line_of("return self.second(torch.sigmoid(").rpartition("/")[2]
    assert culprit["line"].endswith(line)
    assert culprit["what"] in (path.parent / "report.md").read_text()
    folder = path.parent / "reproduce"
    assert [each.name for each in folder.iterdir()] == ["run"]
    assert main(folder / "run") == 1
    assert "first divergence: aten.linear.default in second" in capsys.readouterr().out
    path.write_bytes(right)
    assert main(folder / "run") == 0
    assert validated(workspace)[1] == ""
    assert not folder.exists()


def test_a_delegate_is_lowered_again_as_the_config_says(workspace, monkeypatch):
    right = add_sub._compute

    def wrong(instruction, *operands):
        given = right(instruction, *operands)
        return given + 1 if instruction.operation == "sub" else given

    monkeypatch.setattr(add_sub, "_compute", wrong)
    record, error = validated(workspace)
    assert error.startswith("numerics: sum: ")
    (culprit,) = culprits(record, "sum")
    assert (culprit["operator"], culprit["partition"]) == ("aten.sub.Tensor", 0)
    assert "compiles of parts of the partition" in culprit["what"]
    assert culprits(record, "run") == []


def test_the_manifest_says_which_instruction_gives_which_node(workspace):
    manifest = json.loads((workspace.package("pack") / "manifest.json").read_bytes())
    run, total = (manifest["methods"][name]["instructions"] for name in ("run", "sum"))
    assert [chain for chain, _, _ in run["nodes"]] == [0] * len(run["nodes"])
    assert len({place for _, _, place in run["nodes"]}) == 4  # two linears, sigmoid, add
    assert [call["index"] for call in total["delegates"]] == [0]
    assert Path(manifest["model"]).name == "net"
