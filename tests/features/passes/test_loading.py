"""A workspace's passes are found, count in keys, are loaded afresh, and real builds apply them."""

import json

import pytest

from pipeline.config.edge import PassSpec
from pipeline.features.passes.finding import library_name, source_files
from pipeline.features.passes.loading import load_passes
from pipeline.program.operator_libraries import find_library
from pipeline.store.errors import PipelineError
from tests.support.lowerable import bench_for

# Multiplies every constant factor in a graph.
SCALE = """
from executorch.exir.pass_base import ExportPass
from _factor import FACTOR


class Scale(ExportPass):
    def __init__(self, times=1):
        super().__init__()
        self.times = times

    def call_operator(self, op, args, kwargs, meta):
        if op.__name__.startswith("aten.relu"):
            positive = super().call_operator(op, args, kwargs, meta)
            from executorch.exir.dialects._ops import ops
            whole = ops.edge.aten.mul.Scalar
            return super().call_operator(whole, (positive, FACTOR * self.times), {}, meta)
        return super().call_operator(op, args, kwargs, meta)


def nothing(graph_module):
    return None


value = 3
"""


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "passes"
    folder.mkdir()
    (folder / "scale.py").write_text(SCALE)
    (folder / "_factor.py").write_text("FACTOR = 2.0\n")
    return tmp_path


def test_all_that_a_pass_can_import_counts(root):
    assert set(source_files("scale:Scale", root)) == {"passes/scale.py", "passes/_factor.py"}
    assert source_files("nowhere:Scale", root) == {}


def test_classes_are_made_and_functions_given_their_options(root):
    made, function = load_passes(
        [
            PassSpec(reference="scale:Scale", options={"times": 3}),
            PassSpec(reference="scale:nothing"),
        ],
        root,
    )
    assert made.times == 3
    assert function(None) is None


def test_modules_are_loaded_anew(root, monkeypatch):
    """Even if Python wrote bytecode for a text of the same size in the same second."""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    spec = PassSpec(reference="scale:Scale")
    (first,) = load_passes([spec], root)
    (root / "passes" / "scale.py").write_text(SCALE.replace("times=1", "times=5"))
    (second,) = load_passes([spec], root)
    assert (first.times, second.times) == (1, 5)


@pytest.mark.parametrize(
    ("reference", "options", "words"),
    [
        ("scale:Scal", {}, "has no attribute 'Scal'"),
        ("scale:Scale", {"tims": 1}, "unexpected keyword argument 'tims'"),
    ],
)
def test_what_cannot_be_loaded_is_named(root, reference, options, words):
    with pytest.raises(PipelineError, match=f"pass {reference}: cannot be loaded") as caught:
        load_passes([PassSpec(reference=reference, options=options)], root)
    assert words in str(caught.value)


REGISTERING = """
import torch

_LIBRARY = torch.library.Library("noted", "FRAGMENT")
_LIBRARY.define("fused(Tensor x) -> Tensor")


def fuse(graph_module):
    return None
"""


def test_operators_that_a_pass_registers_are_its_modules(root):
    (root / "passes" / "registering.py").write_text(REGISTERING)
    assert find_library("noted::fused") == ""
    load_passes([PassSpec(reference="registering:fuse")], root)
    assert find_library("noted::fused") == library_name("registering:fuse", root)
    assert library_name("registering:fuse", root) == "passes/registering.py"


CONFIG = {
    "methods": {
        "features": {"partitioners": [], "edge": {"passes": [{"scale:Scale": {"times": 2}}]}},
        "classify": {"partitioners": []},
    },
    "validate": {"inputs": 1},
}


@pytest.mark.slow
def test_a_build_applies_them_and_follows_their_edits(tmp_path):
    bench = bench_for(tmp_path / "workspace", {"scaled": CONFIG})
    assert bench.doit() == 1
    assert "methods.features.edge.passes[0]: the pass scale:Scale is not in passes/" in bench.output
    folder = bench.root / "passes"
    folder.mkdir()
    (folder / "scale.py").write_text(SCALE)
    (folder / "_factor.py").write_text("FACTOR = 0.5\n")
    assert bench.doit() == 0, bench.output  # 0.5 * 2: the same function
    assert bench.doit() == 0 and "up to date: 1 package" in bench.output
    (folder / "_factor.py").write_text("FACTOR = 1.5\n")
    assert bench.doit() == 1
    assert bench.outcomes()["compile scaled/features"] == "built"
    assert bench.outcomes().get("compile scaled/classify") in (None, "up-to-date", "hit")
    record = json.loads(bench.bytes_of("scaled", "report.json"))
    assert not record["ok"] and "absolute error" in record["failures"][0]
