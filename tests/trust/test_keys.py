"""Keys include all that bytes depend on: a program's lines and names, and its nodes' origins."""

import copy
import json
import shutil
import sys
import zipfile

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.program.archive import load_program
from pipeline.program.canonical import canonical_program
from pipeline.store import distributions, startup, toolchain
from pipeline.store.digest import hash_json
from tests.plan.test_actions import SOURCES, changed, config, keys
from tests.program.test_canonical import archive, serialized
from tests.support.bench import Bench
from tests.support.lowerable import bench_for, both

LOOKING = """
from torch.fx.passes.infra.pass_base import PassResult

class Keep:
    def __call__(self, graph_module):
        for node in graph_module.graph.nodes:
            trace = node.meta.get("stack_trace") or ""
            assert "small.py" not in trace, trace
            assert LOOKS not in node.name
        return PassResult(graph_module, False)
"""


@pytest.mark.parametrize(
    "emit",
    [
        {"external_files": {"weights": ["p_*"]}},
        {"external_constants": True},
        {"initialized_buffers": ["cache"]},
        {"passes": ["fusions:Keep"]},
    ],
    ids=str,
)
def test_names_of_values_count_where_something_may_read_them(emit):
    other = {**SOURCES, "encode": SOURCES["encode"]._replace(names="other")}
    given = config(emit=emit)
    assert changed(keys(given), keys(given, other)) == {"encode", "link"}
    assert keys(config()) == keys(config(), other)


@pytest.mark.parametrize("backend", ["vulkan", "coreml"])
def test_names_of_values_and_classes_count_for_backends_that_may_read_them(backend):
    other = {n: source._replace(names=f"other {n}") for n, source in SOURCES.items()}
    given = config(methods={name: {"partitioners": [backend]} for name in SOURCES})
    units = {"+".join(unit) for unit in given.units}
    assert changed(keys(given), keys(given, other)) == {*units, "link"}


@pytest.mark.slow
def test_a_class_and_a_file_with_other_names_compile_nothing(built, tmp_path):
    """The export runs again, and the package equals one from an empty store."""
    before = built.bytes_of("pair", "pair.pte")
    models = built.root / "models"
    built.edit("models/pair.py", "Encode", "Renamed")
    built.edit("models/pair.py", "Shared", "Held")
    (models / "pair.py").rename(models / "pear.py")
    built.edit("partition_configs/pair.yaml", "model: pair", "model: pear")
    cold = Bench(tmp_path / "cold")
    shutil.copytree(built.root, cold.root, ignore=shutil.ignore_patterns(".store", "build"))
    for bench in (built, cold):
        assert bench.doit() == 0, bench.output
    found = built.outcomes()
    assert (found["export pear"], found["link pair"]) == ("built", "refit")
    assert {found[f"compile pair/{name}"] for name in ("encode", "decode")} <= {"hit", "up-to-date"}
    assert {cold.outcomes()[f"compile pair/{name}"] for name in ("encode", "decode")} == {"built"}
    for name in ("pair.pte", "contents.json", "manifest.json"):
        assert built.bytes_of("pair", name) == cold.bytes_of("pair", name)
    assert built.bytes_of("pair", "pair.pte") == before
    for name in ("manifest.json", "contents.json", "report.json", "report.html"):
        assert b"Encode" not in built.bytes_of("pair", name)


@pytest.mark.parametrize("emit", [{"emit_stacktrace": True}, {"etrecord": True}], ids=str)
def test_lines_of_the_source_count_where_bytes_hold_them(emit):
    other = {n: source._replace(content=f"moved {n}") for n, source in SOURCES.items()}
    given = config(emit=emit)
    quantized = {"quantize decode"} if "emit_stacktrace" in emit else set()
    assert changed(keys(given), keys(given, other)) == {"encode", "decode", "link"} | quantized
    assert keys(config()) == keys(config(), other)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("TORCH_FAKE_TENSOR_DISPATCH_CACHE", True),
        ("PYTORCH_JIT", True),
        ("ATEN_CPU_CAPABILITY", True),
        ("MKL_CBWR", True),
        ("ONEDNN_MAX_CPU_ISA", True),
        ("TORCH_LOGS", False),
        ("TORCHINDUCTOR_CACHE_DIR", False),
        ("MKL_NUM_THREADS", False),
        ("EDITOR", False),
    ],
)
def test_variables_that_libraries_read_count(name, counts, monkeypatch):
    monkeypatch.delenv(name, raising=False)
    before = keys(config())
    monkeypatch.setenv(name, "secret")
    assert changed(before, keys(config())) == (before.keys() if counts else set())
    assert "secret" not in str(toolchain.toolchain())


@pytest.fixture
def look_again(tmp_path, monkeypatch):
    """Write a file to a site's folder, and return what Python then runs at startup."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(startup.site, "getsitepackages", lambda: [str(folder)])

    def look(name, text):
        (folder / name).write_text(text)
        sys.path_importer_cache.clear()
        monkeypatch.delitem(sys.modules, "sitecustomize", raising=False)
        for function in (startup.startup_code, distributions.module_identity):
            function.cache_clear()
        return startup.startup_code()

    yield look
    startup.startup_code.cache_clear()
    distributions.module_identity.cache_clear()


@pytest.mark.parametrize(
    ("before", "name"),
    [
        ({}, "sitecustomize.py"),
        ({"sitecustomize.py": "import helper_of_site"}, "helper_of_site.py"),
        (
            {
                "sitecustomize.py": "def f():\n from helper_a import x",
                "helper_a.py": "import helper_b",
            },
            "helper_b.py",
        ),
        ({"a.pth": "import os, helper_a\n"}, "helper_a.py"),
        ({"a.pth": "import os; exec('import helper_a')\n"}, "helper_a.py"),
        ({"a.pth": "import sys; __import__('helper_a')\n"}, "helper_a.py"),
    ],
)
def test_code_that_python_runs_at_its_start_counts(look_again, before, name):
    for file, text in before.items():
        look_again(file, text)
    digests = [look_again(name, text) for text in ("", "A = 1\n", "A = 2\n", "")]
    assert digests[0] == digests[3] and len({str(each) for each in digests[:3]}) == 3
    toolchain_now = toolchain.toolchain()
    assert digests[3].items() <= toolchain_now.items()


def test_lines_of_pth_files_count_and_paths_and_installers_do_not(look_again):
    empty = look_again("a.pth", "/somewhere\n")
    assert look_again("b.pth", "import __editable___mine_finder\n") == empty
    one = look_again("c.pth", "import sys; sys.flag = 1\n")
    assert one != empty != look_again("c.pth", "import sys; sys.flag = 2\n") != one


def rebuilt(bench, folder):
    """Return all packages that a build without any cache makes of a workspace."""
    clean = type(bench)(folder)
    shutil.copytree(bench.root, folder, ignore=shutil.ignore_patterns("build", ".store"))
    assert clean.doit("lower") == 0, clean.output
    return clean


@pytest.mark.slow
def test_stack_traces_in_a_package_are_those_of_the_source(tmp_path):
    settings = {**both(partitioners=[]), "emit": {"emit_stacktrace": True}}
    bench = bench_for(tmp_path / "here", {"traced": settings})
    assert bench.doit("lower") == 0, bench.output
    before = bench.bytes_of("traced", "traced.pte")
    bench.edit("models/small.py", "class Features", "# A line more.\n\n\nclass Features")
    assert bench.doit("lower") == 0, bench.output
    found = bench.bytes_of("traced", "traced.pte")
    # At the same path, which is part of the bytes as well.
    bench.root.rename(tmp_path / "moved")
    moved = type(bench)(tmp_path / "moved")
    assert found != before and found == rebuilt(moved, bench.root).bytes_of("traced", "traced.pte")


@pytest.mark.slow
def test_a_pass_sees_no_lines_that_no_key_holds(tmp_path):
    settings = both(partitioners=["xnnpack"], edge={"passes": ["mine:Keep"]})
    bench = bench_for(tmp_path / "here", {"p": settings})
    (bench.root / "passes").mkdir()
    (bench.root / "passes/mine.py").write_text(f"LOOKS = 'nothing'\n{LOOKING}")
    assert bench.doit("lower") == 0, bench.output
    bench.edit("passes/mine.py", "'nothing'", "'convolution'")
    assert bench.doit("lower") == 1 and "'Keep' pass" in bench.output  # so it did look at the pass


class Three(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.slow
def test_nodes_of_one_ancestor_count_since_they_share_a_debug_handle(tmp_path):
    exported = torch.export.export(Three().eval(), (torch.ones(1, 4),)).run_decompositions({})
    one = serialized(exported)
    other = copy.deepcopy(one)
    nodes = other["graph_module"]["graph"]["nodes"]
    for node in nodes:
        node["metadata"]["from_node"] = nodes[0]["metadata"]["from_node"]
    digests = [hash_json(canonical_program(each).program) for each in (one, other)]
    payloads = []
    for number, program in enumerate((one, other)):
        first, path = tmp_path / "first.pt2", tmp_path / f"{number}.pt2"
        first.write_bytes(archive({"m": exported}))
        exchange(first, path, program)
        lowered = lower({"m": load_program(path, "m")}, {"m": [XnnpackPartitioner()]})
        payloads.append(bytes(emit(lowered).buffer))
    assert payloads[0] != payloads[1] and digests[0] != digests[1]


def exchange(source, target, program):
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for member in old.namelist():
            data = old.read(member)
            new.writestr(member, json.dumps(program) if "/models/" in member else data)
