"""What manifests and reports of packages built by doit say about delegation."""

import json
import re

import pytest

from tests.support.lowerable import bench_for, both, manifest_of

pytestmark = pytest.mark.slow

MODEL = '''
"""Layers, an operator that no delegate here knows, and a branch."""

import torch
from torch import nn
from torch.export import export


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = torch.relu(self.first(x))
        y = torch.asinh(y)
        return self.second(torch.add(y, y, alpha=2))


class Classify(nn.Module):
    def __init__(self, trunk):
        super().__init__()
        self.trunk = trunk

    def forward(self, x):
        y = self.trunk(x)
        return torch.cond(
            y.sum() > 0,
            lambda y: torch.asinh(y),
            lambda y: y * 2.0,
            (y,),
        )


def inputs(seed):
    return (torch.randn(3, 8, generator=torch.Generator().manual_seed(seed)),)


def export_methods():
    trunk = Features().eval().requires_grad_(False)
    return {
        "features": export(trunk, inputs(0)),
        "classify": export(Classify(trunk), inputs(0)),
    }


def example_inputs(method):
    return [inputs(1)]


def calibration_inputs(method):
    return [inputs(2)]
'''

OF_NO_TYPE = "its partitioner doesn't support operators of this type"
ALPHA = "Add node doesn't support alpha != 1"
IN_BRANCH = "it is in control flow, which its partitioner does not examine"
PORTABLE = "portable kernels only, as the config says"


def features(**method):
    """Return a config for the first method, with the second one on portable kernels."""
    return {"methods": {"features": method, "classify": {"partitioners": []}}}


UNTIMED = {"latency": {"seconds": 0}}  # no two builds take the same time
CONFIGS = {
    "plain": both(partitioners=["xnnpack"]) | {"validate": UNTIMED},
    "confined": features(partitioners=["xnnpack"], modules=["first"]),
    "int8": features(partitioners=["xnnpack"], quantize={"quantizer": "xnnpack"})
    | {"validate": {"atol": 1.0, "rtol": 1.0, **UNTIMED}},
    "several": features(partitioners=["vulkan", "xnnpack"]),
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = bench_for(tmp_path_factory.mktemp("delegation") / "workspace", CONFIGS)
    (bench.root / "models" / "small.py").write_text(MODEL)
    assert bench.doit(timeout=900) == 0, bench.output
    return bench


def delegation(bench, package, method="features"):
    return manifest_of(bench, package)["methods"][method]["delegation"]


def left(bench, package, method="features"):
    return [(e["operator"], e["reason"]) for e in delegation(bench, package, method)["left"]]


def rows(bench, package, method, operator):
    """Return the report's rows on undelegated calls: operator, times, reason, line."""
    text = bench.bytes_of(package, "report.md").decode()
    section = text.split("## Left to portable kernels")[1].split("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines()]
    return [
        [first, *rest]
        for first, of, *rest in (each for each in cells if len(each) == 5)
        if of == f"`{method}`" and first.startswith(f"`{operator}`")
    ]


def test_each_call_that_is_left_has_its_reason(bench):
    assert left(bench, "plain") == [("aten.asinh", OF_NO_TYPE), ("aten.add.Tensor", ALPHA)]
    assert left(bench, "plain", "classify") == [
        ("aten.asinh", OF_NO_TYPE),
        ("aten.add.Tensor", ALPHA),
        ("aten.sum.dim_IntList", OF_NO_TYPE),
        ("aten.gt.Scalar", OF_NO_TYPE),
        ("aten.asinh", IN_BRANCH),
        ("aten.mul.Tensor", IN_BRANCH),
    ]
    outside = "outside `modules: [first]`"
    assert {reason for _, reason in left(bench, "confined")} == {outside}
    assert {reason for _, reason in left(bench, "confined", "classify")} == {PORTABLE}


def test_several_backends_have_their_shares_and_reasons(bench):
    assert list(delegation(bench, "several")["backends"]) == ["VulkanBackend"]
    assert left(bench, "several") == [
        ("aten.asinh", f"vulkan: no operator implementation; xnnpack: {OF_NO_TYPE}")
    ]
    counts = delegation(bench, "plain", "classify")
    own = counts["backends"]["XnnpackBackend"]
    assert own["nodes"] == counts["delegated_nodes"]
    assert own["partitions"] == counts["partitions"]["XnnpackBackend"] == 2
    assert counts["subgraphs"] == 2
    # The input and the sum go in, two outputs come out: 3 rows of 8 floats each.
    assert (
        counts["boundary"]["into"] == counts["boundary"]["out_of"] == {"tensors": 2, "bytes": 192}
    )


@pytest.mark.parametrize("package", CONFIGS)
def test_the_report_leads_to_the_lines(bench, package):
    line = 1 + MODEL.splitlines().index("        y = torch.asinh(y)")
    ((operator, times, _, source),) = rows(bench, package, "features", "aten.asinh")
    assert operator == "`aten.asinh`" and times == "1"
    assert source == f"`y = torch.asinh(y)` (models/small.py:{line}, in Features.forward)"


def test_the_report_leads_to_branches(bench):
    """torch.export doesn't record lines inside a branch, only that of the condition."""
    lines = {why: line for *_, why, line in rows(bench, "plain", "classify", "aten.asinh")}
    assert lines[IN_BRANCH].startswith("`return torch.cond(` (models/small.py:")
    assert "y = torch.asinh(y)" in lines[OF_NO_TYPE]


@pytest.mark.parametrize("package", ["plain", "int8"])
def test_manifests_do_not_depend_on_lines(bench, package, tmp_path):
    other = bench_for(tmp_path / "other", {package: CONFIGS[package]})
    moved = MODEL.replace("import torch\n", "import torch\n\n\n# Moved.\n", 1)
    (other.root / "models" / "small.py").write_text(moved)
    empty = str(tmp_path / "empty")
    assert other.doit(PTE_PIPELINE_STORE=empty, timeout=900) == 0, other.output
    for name in ("manifest.json", f"{package}.pte"):
        assert other.bytes_of(package, name) == bench.bytes_of(package, name)
    before, after = (each.bytes_of(package, "report.md").decode() for each in (bench, other))
    assert before != after
    assert after == re.sub(r"(?<=small\.py:)\d+", lambda line: str(int(line[0]) + 3), before)


def test_manifests_hold_no_line(bench):
    for package in CONFIGS:
        for facts in manifest_of(bench, package)["methods"].values():
            text = json.dumps(facts["delegation"])
            assert "small.py" not in text and str(bench.root) not in text
