"""An exporter's parameters and constants, omitted methods, ExecuTorch's passes by name and passes
from a factory, all in one workspace that gives the joint call's bytes."""

import json
import textwrap
from types import ModuleType

import pytest
import torch
import yaml
from torch.export import export

from pipeline.features.exporters.exporter import call_export_methods, call_with
from pipeline.plan.export_parameters import find_wrong, name_export, parse_export, read_parameters
from pipeline.store.errors import SourceError
from tests.support.bench import Bench

MODEL = """
import torch
from torch import nn
from torch.export import export


class Encode(nn.Module):
    def __init__(self, size):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(size, size)

    def forward(self, x):
        return torch.relu(self.layer(x))


class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor([3.0]))

    def forward(self, x):
        self.count.add_(1)
        return x * self.count


def export_methods(size=4, *, dtype="float32", path="", method="plain"):
    x = torch.ones(2, size, dtype=getattr(torch, dtype))
    encode = Encode(size).to(x.dtype).requires_grad_(False)
    return {"encode": export(encode, (x,)), "audio": export(nn.Tanh(), (x,)),
            "count": export(Count(), (x,))}


def constant_methods(size=4):
    table = {"scale": torch.arange(3.0), "names": ("a", torch.float16)}
    return {"get_size": size, "get_names": ["a", "b"], "get_table": table}


def example_inputs(method, dtype="float32"):
    return None
"""
PASSES = """
import torch


def fuse(graph_module):
    return None


class Keep:
    def __init__(self, name):
        self.name = name

    def __call__(self, graph_module):
        return None


def several(names):
    return [fuse, *(Keep(name) for name in names)]
"""
CONFIG = {
    "model": "sized",
    "export": {
        "size": "${matrix.size}",
        "dtype": "float32",
        "path": "a/b",
        "method": "plain",
    },
    "methods": {
        "encode": {"partitioners": ["xnnpack"]},
        "count": {
            "partitioners": [],
            "edge": {"passes": [{"factory": {"own:several": {"names": ["a"]}}}]},
        },
        "audio": "omit",
    },
    "constant_methods": {"get_size": 7, "get_more": 1.5},
    "emit": {
        "passes": [
            {
                "executorch.exir.passes.init_mutable_pass:InitializedMutableBufferPass": {
                    "patterns": ["count"]
                }
            }
        ]
    },
    "validate": {"inputs": 1},
    "matrix": {"size": [4, 6]},
}


def test_an_export_is_named_by_its_parameters():
    given = {"dtype": "bf16", "size": 2048, "text": "2048", "some": [1, "a+b~c"], "flag": True}
    name = name_export("llama", given)
    assert name.startswith("llama+dtype~bf16+flag~true+size~2048+some~")
    assert parse_export(name) == ("llama", dict(sorted(given.items())))
    assert name_export("llama", {"size": "2048"}) != name_export("llama", {"size": 2048})
    assert parse_export("llama") == ("llama", {})


@pytest.mark.parametrize(
    ("signature", "given", "found"),
    [
        ("size, *, dtype='x'", {"size": 1, "dtype": "y"}, []),
        ("**given", {"any": 1}, []),
        ("size=1", {"siez": 2}, [("siez", "did you mean 'size'? known: size")]),
        ("", {"size": 2}, [("size", "it takes none")]),
        ("size, *, dtype", {}, [("", "{size: ...}"), ("", "{dtype: ...}")]),
    ],
)
def test_what_an_exporter_takes_is_read_in_its_text(tmp_path, signature, given, found):
    path = tmp_path / "model.py"
    path.write_text(f"def export_methods({signature}):\n    return None\n")
    wrong = [(n, known) for n, _, known in find_wrong(read_parameters(path), given, "model.py")]
    assert [name for name, _ in wrong] == [name for name, _ in found]
    for (_, known), (_, words) in zip(wrong, found, strict=True):
        assert words in known


@pytest.fixture
def bench(tmp_path):
    for folder in ("models", "partition_configs", "passes"):
        (tmp_path / folder).mkdir()
    (tmp_path / "dodo.py").write_text("from pipeline.tasks import *\n")
    (tmp_path / "models" / "sized.py").write_text(MODEL)
    (tmp_path / "passes" / "own.py").write_text(PASSES)
    return Bench(tmp_path)


def write(bench, **changes):
    text = yaml.safe_dump({**CONFIG, **changes}, sort_keys=False)
    (bench.root / "partition_configs" / "sized.yaml").write_text(text)


def joint(size):
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    module = {}
    exec(compile(textwrap.dedent(MODEL), "sized.py", "exec"), module)
    programs = module["export_methods"](size)
    del programs["audio"]
    edge = to_edge_transform_and_lower(
        programs,
        partitioner={"encode": [XnnpackPartitioner()], "count": []},
        constant_methods=module["constant_methods"]() | {"get_size": 7, "get_more": 1.5},
    )
    passes = [InitializedMutableBufferPass(["count"])]
    return edge.to_executorch(ExecutorchBackendConfig(passes=passes)).buffer


@pytest.mark.slow
def test_each_set_of_parameters_is_an_export_of_its_own(bench):
    write(bench)
    assert bench.doit() == 0, bench.output
    names = "export sized+dtype~float32+method~plain+path~a%2Fb+size~{}".format
    assert {names(4), names(6)} <= bench.outcomes().keys()
    for size in (4, 6):
        package = f"sized-{size}"
        assert bench.bytes_of(package, f"{package}.pte") == joint(size)
        manifest = json.loads(bench.bytes_of(package, "manifest.json"))
        assert manifest["order"] == ["encode", "count"]
        table = manifest["constant_methods"].pop("get_table")
        assert [leaf if isinstance(leaf, str | int) else "tensor" for leaf in table["leaves"]] == [
            "tensor",
            "a",
            5,
        ]
        assert manifest["constant_methods"] == {
            "get_size": 7,
            "get_names": ["a", "b"],
            "get_more": 1.5,
        }
        assert json.loads(bench.bytes_of(package, "report.json"))["ok"]
    assert bench.doit() == 0 and "up to date: 2 packages" in bench.output
    write(bench, matrix={"size": [4, 8]})
    assert bench.doit() == 0, bench.output
    built = {name for name, outcome in bench.outcomes().items() if outcome == "built"}
    assert names(8) in built and names(4) not in built
    write(bench, export={"size": "${matrix.size}", "sizes": 4})
    assert bench.doit() != 0
    line = "export.sizes: is not a parameter of export_methods() in models/sized.py; did you mean"
    assert line in bench.output and "Traceback" not in bench.output


def test_a_method_name_that_is_not_a_string_is_described():
    program = export(torch.nn.Tanh(), (torch.ones(1),))
    module = ModuleType("numbered")
    module.export_methods = lambda: {"encode": program, 1: program}
    what = "returned a dict of 1: ExportedProgram; must be a dict of method name to"
    with pytest.raises(SourceError, match=what):
        call_export_methods(module, {})


def test_method_names_that_differ_by_case_alone_are_told():
    program = export(torch.nn.Tanh(), (torch.ones(1),))
    module = ModuleType("cased")
    module.export_methods = lambda: {"Encode": program, "encode": program}
    with pytest.raises(SourceError, match=r"cased.py: method names Encode, encode: two of them"):
        call_export_methods(module, {})


@pytest.mark.parametrize(
    ("signature", "got"),
    [
        ("method", {"method": "encode"}),
        ("method, **more", {"method": "encode", "more": {"size": 4}}),
        ("method, /, **more", {"method": "encode", "more": {"method": "fast", "size": 4}}),
        ("name, method, size=1", {"name": "encode", "method": "fast", "size": 4}),
        ("name, *, method", {"name": "encode", "method": "fast"}),
        ("*names, method", {"names": ("encode",), "method": "fast"}),
    ],
)
def test_a_parameter_called_method_does_not_meet_the_name_of_the_method(signature, got):
    scope = {}
    exec(f"def example_inputs({signature}): return locals()", scope)
    parameters = {"method": "fast", "size": 4}
    assert call_with(scope["example_inputs"], parameters, "encode") == got
