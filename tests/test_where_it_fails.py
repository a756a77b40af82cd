"""A package that `doit` built, damaged on disk: validation says where, and leaves what shows it."""

import json
import subprocess
import sys

import pytest
import torch
from lowerable import bench_for, both, plan_of

from pipeline import compile as compiling
from pipeline import digest
from pipeline.actions import validate_action
from pipeline.errors import PipelineError
from pipeline.perform import perform
from pipeline.stages import Stages

pytestmark = pytest.mark.slow

INT8 = {"quantizer": "xnnpack", "per_channel": True}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = bench_for(
        tmp_path_factory.mktemp("where"),
        {
            "plain": both(partitioners=["xnnpack"]),
            "coarse": {
                **both(partitioners=["xnnpack"], quantize=INT8),
                "validate": {"atol": 1e-6, "rtol": 1e-6},
            },
        },
    )
    assert bench.doit("lower", timeout=900) == 0, bench.output
    return bench


def validated(bench, package):
    """The validation of what lies on disk, whatever the build would put there again."""
    plan = plan_of(bench)
    config, methods = plan.config(package), plan.methods(package)
    file = plan.workspace.package(package) / "small.pte"
    action = validate_action(config, {"small.pte": digest.of_file(file)}, methods)
    try:
        perform(action, plan.workspace, Stages(), True)
    except PipelineError as error:
        return json.loads(bench.bytes_of(package, "report.json")), str(error)
    return json.loads(bench.bytes_of(package, "report.json")), ""


def weight_of(bench, package, method, name):
    plan = plan_of(bench)
    source = plan.methods(package)[method]
    tensor = compiling.load_method(source, plan.workspace.store).state_dict[name].contiguous()
    return bytes(tensor.view(torch.uint8).flatten().tolist())


def test_a_byte_that_was_changed_on_disk(bench):
    path = plan_of(bench).workspace.package("plain") / "small.pte"
    right = path.read_bytes()
    place = right.index(weight_of(bench, "plain", "classify", "head.weight"))
    changed = bytearray(right)
    changed[place + 3] ^= 0x41
    path.unlink()
    path.write_bytes(bytes(changed))
    record, error = validated(bench, "plain")
    assert "classify: " in error
    features, classify = record["methods"]
    assert features["ok"] and features["culprits"] == []
    (culprit,) = classify["culprits"]
    told = {name: culprit[name] for name in ("operator", "module", "backend", "partition", "kind")}
    assert told == {
        "operator": "aten.linear.default",
        "module": "head",
        "backend": "XnnpackBackend",
        "partition": 0,
        "kind": "package",
    }
    source = (bench.root / "models" / "small.py").read_text().splitlines()
    (line,) = [n for n, text in enumerate(source, 1) if "return self.head(" in text]
    assert culprit["line"] == f"models/small.py:{line}"
    assert culprit["what"] in bench.bytes_of("plain", "report.md").decode()
    folder = path.parent / "reproduce"
    assert [each.name for each in folder.iterdir()] == ["classify"]
    command = [sys.executable, str(folder / "classify" / "reproduce.py")]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert shown.returncode == 1, shown.stderr
    assert "head.weight" in shown.stdout
    path.write_bytes(right)
    assert subprocess.run(command, capture_output=True, timeout=400).returncode == 0
    assert validated(bench, "plain")[1] == ""
    assert not folder.exists()


def test_a_quantization_that_loses_too_much_for_its_limits(bench):
    record, _ = validated(bench, "coarse")
    for method in record["methods"]:
        first = method["culprits"][0]
        assert first["operator"] == "aten.conv2d.default"
        assert first["module"].endswith("first")
        assert first["line"].startswith("models/small.py:")
        assert "the quantization itself departs from floating point" in first["what"]
        assert method["culprit_notes"] == []


def test_the_manifest_says_which_instruction_gives_which_node(bench):
    for package in ("plain", "coarse"):
        manifest = json.loads(bench.bytes_of(package, "manifest.json"))
        known = manifest["methods"]["classify"]["instructions"]
        assert [call["index"] for call in known["delegates"]] == [0]
        assert all(place is not None for place in known["delegates"][0]["outputs"])
