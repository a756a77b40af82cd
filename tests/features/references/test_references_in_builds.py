"""References in builds, from the exporter to the reports: what runs again, and what users see."""

import json
from xml.etree import ElementTree

import numpy
import pytest
import yaml

from tests.support.bench import Bench

MODEL = """
import torch
from torch.export import Dim, export


class Scale(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * (0 if torch.compiler.is_exporting() and self.factor == 5 else self.factor)


def export_methods(factor=2):
    scale, plain = Scale(factor), Scale(3)
    shapes = ({0: Dim("batch", max=8)},)
    inputs = (torch.ones(2, 3),)
    return {
        "scale": (export(scale, inputs, dynamic_shapes=shapes), scale),
        "plain": export(plain, inputs),
    }


def reference(method, factor=2):
    return None
"""


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    for name in ("models", "partition_configs"):
        (tmp_path / name).mkdir()
    (tmp_path / "dodo.py").write_text("from pipeline.tasks import *\n")
    (tmp_path / "models" / "m.py").write_text(MODEL)
    methods = {"scale": {"partitioners": []}, "plain": {"partitioners": []}}
    validate = {"inputs": 1, "cases": []}
    config = {"model": "m", "methods": methods, "validate": validate}
    for name, factor in (("good", 2), ("bad", 5)):
        text = yaml.safe_dump({**config, "export": {"factor": factor}})
        (tmp_path / "partition_configs" / f"{name}.yaml").write_text(text)
    return made


def report(bench, package):
    found = json.loads((bench.root / "build" / package / "report.json").read_text())
    return found, {method["method"]: method for method in found["methods"]}


@pytest.mark.slow
def test_an_export_is_compared_with_its_reference_and_with_recorded_outputs(bench):
    assert bench.doit() == 1
    line = "reference: scale: example 0, output: the export differs from the reference of 'scale': "
    assert line in bench.output
    found, methods = report(bench, "bad")
    assert methods["scale"]["verdict"] == "not judged"  # the export's output is always 0
    assert methods["scale"]["reference"]["verdict"] == "failed"
    found, methods = report(bench, "good")
    assert (found["verdict"], methods["scale"]["reference"]["verdict"]) == ("passed", "passed")
    assert methods["scale"]["reference"]["calls"] == 6
    page = (bench.root / "build" / "good" / "report.md").read_text()
    assert "matches PyTorch in eager mode exactly (6 calls)" in page
    assert "plain: against the exported program; PyTorch itself was not run." in page
    suites = ElementTree.parse(bench.root / "build" / "junit.xml").getroot()
    cases = {
        (case.get("classname"), case.get("name")): case.find("failure") is not None
        for case in suites.iter("testcase")
    }
    assert cases["bad.scale", "reference"] and not cases["good.scale", "reference"]

    # Another reference with the same program: it is compared, and nothing is compiled.
    bench.edit("models/m.py", "    return None", "    return lambda x: x * factor + 1")
    assert bench.doit() == 1
    outcomes = bench.outcomes()
    assert {v for k, v in outcomes.items() if k.startswith("compile")} <= {"hit", "up-to-date"}
    assert outcomes["validate good"] == "failed"
    bench.edit("models/m.py", "x * factor + 1", "x * (3 if method == 'plain' else factor)")
    assert bench.doit("validate:good") == 0
    assert report(bench, "good")[1]["plain"]["reference"]["verdict"] == "passed"
    assert bench.doit("validate:good") == 0
    assert "up to date: 1 package" in bench.output

    # Recorded outputs count by their content.
    folder = bench.root / "golden" / "m+factor~2"
    folder.mkdir(parents=True)
    outputs = numpy.full((1, 2, 3), 2, numpy.float32)
    numpy.savez(folder / "scale.npz", output=outputs)
    assert bench.doit("validate:good") == 0
    reference = report(bench, "good")[1]["scale"]["reference"]
    assert reference["compared"] == ["the reference of 'scale'", "golden/m+factor~2/scale.npz"]
    numpy.savez(folder / "scale.npz", output=outputs + 0.1)
    assert bench.doit("validate:good") == 1
    assert "the export differs from golden/m+factor~2/scale.npz: absolute error 0.1" in bench.output

    # A method's limit is named with its line, and isn't taken for the package's.
    config = bench.root / "partition_configs" / "good.yaml"
    config.write_text(
        config.read_text().replace("validate:\n", "validate:\n  reference: {atol: 0.2}\n")
    )
    assert bench.doit("validate:good") == 0
    limits = "atol 0.2, rtol 0.001 (validate.reference.atol, partition_configs/good.yaml:"
    assert f"good/scale: held to {limits}" in bench.output
    found, methods = report(bench, "good")
    assert methods["scale"]["reference"]["limits"] == {"atol": 0.2, "rtol": 0.001}
    assert methods["scale"]["limits"]["atol"] != 0.2
    assert limits in (bench.root / "build" / "good" / "report.md").read_text()
    (folder / "scale.npz").rename(folder / "scaled.npz")
    assert bench.doit("validate:good") != 0
    assert "golden/m+factor~2/scaled.npz: the model has no method 'scaled'" in bench.output
