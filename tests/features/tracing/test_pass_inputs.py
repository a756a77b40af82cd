"""Files that passes read are in the key, or an error names them; results are never stale."""

import json
import socket
import threading
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pipeline.features.tracing.pass_reads import PassReads
from pipeline.plan.user_code import open_code
from pipeline.run.build.load import check_libraries
from pipeline.run.isolated import run_isolated
from pipeline.store import distributions
from pipeline.store.errors import SourceError
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support.lowerable import bench_for, both
from tests.support.matrix import in_tiers

# A pass that scales a method's output by the number that `read()` finds.
SCALE = """
import json
import os
from pathlib import Path

import torch
from executorch.exir.dialects._ops import ops
from torch.fx.passes.infra.pass_base import PassResult

{header}

class Scale:
    def __call__(self, graph_module):
        number = read()
        for node in graph_module.graph.nodes:
            if "relu" in str(node.target):
                with graph_module.graph.inserting_after(node):
                    new = graph_module.graph.call_function(
                        ops.edge.aten.mul.Scalar, (node, number)
                    )
                    new.meta = dict(node.meta)
                node.replace_all_uses_with(new)
                new.args = (node, number)
                break
        graph_module.recompile()
        return PassResult(graph_module, True)
"""
READS = {
    "beside": "def read():\n    return json.loads((Path(__file__).parent / 'n.json').read_text())",
    "outside": "def read():\n    return json.loads(Path('data/n.json').read_text())",
    "variable": "def read():\n    return float(os.environ.get('LEVEL', '3'))",
    "absent": "def read():\n    return 2.0 if Path('data/flag').exists() else 1.0",
}

ACTION = SimpleNamespace(
    key={"passes": {"mine:Scale": {}}},
    libraries=(),
    inputs=SimpleNamespace(configs={}, sources={}),
)


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "passes").mkdir()
    (tmp_path / "data").mkdir()
    return Workspace(tmp_path, Store(tmp_path / "store"), 1)


def find(workspace):
    distributions.module_identity.cache_clear()
    return open_code("passes", replace(workspace)).find("mine:Scale")


def test_what_can_be_known_before_a_run_is_in_the_key(workspace, tmp_path, monkeypatch):
    library = tmp_path / "elsewhere" / "helperlib" / "__init__.py"
    library.parent.mkdir(parents=True)
    library.write_text("N = 1\n")
    monkeypatch.syspath_prepend(library.parents[1])
    text = (
        "import helperlib\nINPUTS = ['data/*.json', 'env:LEVEL', 'lib:numpy']\nclass Scale: ...\n"
    )
    files = {
        tmp_path / "passes/mine.py": text,
        tmp_path / "passes/other.py": "",
        tmp_path / "passes/deep/n.json": "1",
        tmp_path / "data/n.json": "1",
        library: "N = 1\n",
    }
    for path, content in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    found = [find(workspace)]
    for path, content in files.items():
        path.write_text(f"{content} ")
        found.append(find(workspace))
    (tmp_path / "data/more.json").write_text("")
    found.append(find(workspace))
    monkeypatch.setenv("LEVEL", "secret")
    found.append(find(workspace))
    assert len({json.dumps(each, sort_keys=True) for each in found}) == len(found)
    assert "secret" not in str(found) and find(workspace) == found[-1]
    assert find(workspace)["lib:numpy"]


@pytest.mark.parametrize("inputs", ["['gone/*.txt']", "7", "['env:']", "['lib:never-heard-of']"])
def test_inputs_that_can_not_be_are_one_line(workspace, inputs):
    (workspace.root / "passes/mine.py").write_text(f"INPUTS = {inputs}\nclass Scale: pass\n")
    with pytest.raises(SourceError, match=r"passes/mine.py:.*INPUTS"):
        find(workspace)


def test_a_pass_that_reads_the_clock_is_refused_unless_it_says_what_counts(workspace):
    path, reads = workspace.root / "passes/mine.py", PassReads(ACTION, workspace)
    reads.watch.view = "kernel"
    code = "import time\n\nclass Scale:\n    def __call__(self, graph):\n        time.time()\n"
    path.write_text(code)
    with pytest.raises(SourceError, match=r"^passes/mine.py:5 reads the clock \(time.time\); "):
        reads.check()
    path.write_text(f"INPUTS = []\n{code}")
    reads.check()


def test_a_library_of_operators_that_changed_since_it_was_planned_is_told(workspace):
    path = workspace.root / "operators" / "team_ops.py"
    path.parent.mkdir()
    path.write_text("import torch\n")
    planned = open_code("operators", workspace).find("team_ops")
    own = {"operator_inputs": {"team_ops": planned}}
    for key in ({}, own):
        check_libraries(SimpleNamespace(key=key), workspace)
    path.write_text("import torch\nx = 1\n")
    for key in (own, {"measured": own}):
        with pytest.raises(SourceError, match=r"^operators: team_ops: changed while the build ran"):
            check_libraries(SimpleNamespace(key=key), workspace)


def test_a_variable_whose_name_is_computed_is_named(workspace, monkeypatch):
    path = workspace.root / "passes/mine.py"
    path.write_text("import os\n\ndef read():\n    return os.environ.get('LEV' + 'EL', '3')\n")
    monkeypatch.setenv("LEVEL", "3")
    reads, made = PassReads(ACTION, workspace), {}
    exec(compile(path.read_text(), path, "exec"), made)
    run_isolated(made["read"], reads.watch)
    with pytest.raises(SourceError, match=r"their INPUTS do not name: .*env:LEVEL$"):
        reads.check()


@pytest.mark.parametrize("how", in_tiers(READS, ["beside", "variable"]))
def test_a_pass_never_gives_stale_bytes(how, tmp_path):
    settings = both(partitioners=[])
    settings["methods"]["features"] = {"partitioners": [], "edge": {"passes": ["mine:Scale"]}}
    bench = bench_for(tmp_path / "here", {"p": settings})
    for folder in ("passes", "data"):
        (bench.root / folder).mkdir()
        (bench.root / folder / "n.json").write_text("2.0")
    path = bench.root / "passes/mine.py"
    path.write_text(SCALE.format(header=READS[how]))
    declared = ""
    if how != "beside":
        assert bench.doit("lower") == 1
        name = {"outside": "data/n.json", "variable": "env:LEVEL", "absent": "data/flag"}[how]
        assert f"passes read files that their INPUTS do not name: {name}" in bench.output, (
            bench.output
        )
        pattern = "data/*" if how == "absent" else name
        declared = f"INPUTS = [{pattern!r}]\n"
        path.write_text(SCALE.format(header=declared + READS[how]))
    assert bench.doit("lower") == 0, bench.output
    before = bench.bytes_of("p", "p.pte")
    assert bench.doit("lower") == 0 and "built" not in bench.output, bench.output
    for folder in ("passes", "data"):
        (bench.root / folder / "n.json").write_text("4.0")
    (bench.root / "data/flag").write_text("")
    assert bench.doit("lower", LEVEL="5") == 0, bench.output
    assert bench.bytes_of("p", "p.pte") != before


@pytest.mark.slow
def test_a_remote_is_no_input_of_passes(tmp_path):
    """The process of passes doesn't query it, so passes don't seem to depend on the network."""
    settings = both(partitioners=[])
    settings["methods"]["features"] = {"partitioners": [], "edge": {"passes": ["mine:Scale"]}}
    bench = bench_for(tmp_path / "here", {"p": settings})
    (bench.root / "passes").mkdir()
    header = "def read():\n    return 2.0"
    (bench.root / "passes/mine.py").write_text(SCALE.format(header=header))
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_find_nothing, args=(server,), daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        remote = {"PTE_PIPELINE_REMOTE": url, "PTE_PIPELINE_REMOTE_TRUST": "unsigned"}
        code = bench.doit("lower", PTE_PIPELINE_REMOTE_MODE="read-only", **remote)
    assert code == 0, bench.output
    assert "not there" in bench.output and "errors" not in bench.output


def _find_nothing(server):
    with suppress(OSError):  # closed
        while True:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.0 404 No\r\nContent-Length: 0\r\n\r\n")


def test_where_the_loader_looks_for_libraries_is_not_what_passes_read(workspace, monkeypatch):
    (workspace.root / "passes/mine.py").write_text("class Scale: pass\n")
    monkeypatch.chdir(workspace.root)
    tried = str(workspace.root / "lib" / "glibc-hwcaps" / "x86-64-v3" / "libc.so.6")
    reads = PassReads(ACTION, workspace)
    reads.watch.seen = {("file", tried): None}
    with pytest.raises(SourceError, match=r"their INPUTS do not name: lib/glibc-hwcaps/"):
        reads.check()
    monkeypatch.setenv("LD_LIBRARY_PATH", "lib")
    reads.check()
    reads.watch.seen = {("file", str(workspace.root / "lib" / "n.json")): None}
    with pytest.raises(SourceError, match=r"their INPUTS do not name: lib/n.json"):
        reads.check()
