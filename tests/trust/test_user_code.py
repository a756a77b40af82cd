"""User code (exporters, passes, plugins) never affects other code, neither now nor later."""

import os
import random
import re
import sys
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import BaseTorchDispatchMode

from pipeline.backends import BACKENDS
from pipeline.config.edge import EdgeConfig, PassSpec
from pipeline.config.models import MethodConfig
from pipeline.features.backend_plugins.plugins import _complete
from pipeline.features.exporters.export import export
from pipeline.features.remote.remote import RemoteSettings
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.program.archive import load_program
from pipeline.program.kept_state import _PARTS, _SEEDS, keep_state, kept_state
from pipeline.run import worker
from pipeline.run.build.compile_requests import _load_passes
from pipeline.run.build.load import load_method
from pipeline.run.perform import runs_user_code
from pipeline.run.stages import Stages
from pipeline.store.errors import PipelineError, SourceError
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import Workspace, open_workspace
from tests.support.lowerable import bench_for, both

EXPORTER = """
import torch
from torch.export import export


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(4))

    def forward(self, x):
        return x * self.weight


def export_methods():
    return {"forward": export(Scale(), (torch.ones(4),))}
"""


@pytest.fixture
def export_model(tmp_path, monkeypatch):
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(tmp_path / "store"))
    root = tmp_path / "workspace"
    (root / "models").mkdir(parents=True)
    (root / "partition_configs").mkdir()

    def run(name, before=""):
        """Export a model; return its source, and its program."""
        (root / "models" / f"{name}.py").write_text(before + EXPORTER)
        workspace = open_workspace(root)
        export(Plan(workspace).models.export(name), workspace, Stages())
        source = Plan(workspace).models.methods(name)["forward"]
        return source, load_program(source.archive, "forward")

    return run


def test_no_exporter_sees_another_ones_defaults(export_model):
    _, first = export_model("a", "import torch; torch.set_default_dtype(torch.float64)\n")
    _, second = export_model("c")
    assert first.state_dict["weight"].dtype == torch.float64
    assert second.state_dict["weight"].dtype == torch.float32


def test_an_exporter_without_a_seed_gives_the_same_each_time(export_model):
    source, _ = export_model("a")
    torch.rand(5), random.random(), np.random.rand()
    assert export_model("a")[0].program == source.program


CHANGES = {
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "the default device": lambda: torch.set_default_device("meta"),
    "the number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "whether gradients are computed": lambda: torch._C._set_grad_enabled(False),
    "which algorithms are deterministic": lambda: torch.use_deterministic_algorithms(True),
    "the precision of matrix products": lambda: torch.set_float32_matmul_precision("medium"),
    "whether denormals are flushed": lambda: torch.set_flush_denormal(True),
    "whether oneDNN is used": lambda: torch._C._set_mkldnn_enabled(False),
    "whether NNPACK is used": lambda: torch._C._set_nnpack_enabled(False),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "decompositions": lambda: torch._decomp.decomposition_table.popitem(),
    "the environment": lambda: os.environ.update(PTE_LEFT="1"),
    "the working folder": lambda: os.chdir("/"),
    "sys.path": lambda: sys.path.append("/nowhere"),
    "torch's seed": lambda: torch.rand(1),
    "numpy's seed": lambda: np.random.rand(),
    "random's seed": random.random,
}


def read(part):
    _, read_part, _ = part
    value = read_part()
    return value.tolist() if isinstance(value, torch.Tensor) else repr(value)


@pytest.mark.parametrize("part", [*_PARTS, *_SEEDS], ids=lambda part: part[0])
def test_each_part_of_the_state_is_put_back(part, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    before = read(part)
    with kept_state("pass fusions:Fuse"):
        CHANGES[part[0]]()
        assert read(part) != before
    assert read(part) == before
    if part in _PARTS:
        assert f"pass fusions:Fuse changed {part[0]}, which is put back" in caplog.text


def test_all_parts_at_once_and_after_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = [read(part) for part in (*_PARTS, *_SEEDS)]
    with pytest.raises(ValueError, match="own"), kept_state("a pass"):
        for change in CHANGES.values():
            change()
        raise ValueError("own")
    assert [read(part) for part in (*_PARTS, *_SEEDS)] == before


def add_kernel():
    library = torch.library.Library("aten", "IMPL")
    library.impl("add.Tensor", lambda a, b: a, "CPU")
    return library


def test_what_lasts_is_refused():
    what = r"^a pass: gives aten/add.Tensor/CPU another kernel"
    with pytest.raises(PipelineError, match=what), kept_state("a pass"):
        library = add_kernel()
    library._destroy()
    with kept_state("a pass"):  # a custom operator
        own = torch.library.Library("pte_trust", "DEF")
        own.define("twice(Tensor x) -> Tensor")
        own.impl("twice", lambda x: x + x, "CPU")
    own._destroy()
    mode = BaseTorchDispatchMode()
    with pytest.raises(PipelineError, match="a pass: leaves a torch mode enabled"):
        enter(mode)
    mode.__exit__(None, None, None)


@partial(keep_state, who="a pass")
def enter(mode):
    mode.__enter__()


def test_under_a_mode_of_torch():
    """As while a program is being traced."""
    before = torch.get_rng_state().tolist()
    with FakeTensorMode(), kept_state("a pass"):
        torch.manual_seed(3)
    assert torch.get_rng_state().tolist() == before


PASSES = """
import torch
from torch.fx.passes.infra.pass_base import PassBase

torch.set_default_dtype(torch.float64)


class Change(PassBase):
    def call(self, graph_module):
        torch.set_default_dtype(torch.float64)


def change(graph_module):
    torch.set_default_dtype(torch.float16)
"""


def test_passes_keep_the_state_and_their_class(tmp_path, caplog):
    (tmp_path / "passes").mkdir()
    (tmp_path / "passes" / "own.py").write_text(PASSES)
    specs = [PassSpec(reference="own:Change"), PassSpec(reference="own:change")]
    made, function = _load_passes(specs, tmp_path)
    assert torch.get_default_dtype() == torch.float32
    assert isinstance(made, torch.fx.passes.infra.pass_base.PassBase)
    assert type(made).__name__ == "Change"
    graph = torch.fx.symbolic_trace(torch.nn.Identity())
    made(graph), function(graph)
    assert torch.get_default_dtype() == torch.float32
    named = [line.partition(" changed")[0] for line in caplog.messages]
    assert named == ["pass own:Change, pass own:change", "pass own:Change", "pass own:change"]


def test_parts_of_plugins_keep_the_state():
    def make_partitioner(options):
        torch.set_default_dtype(torch.float64)
        return made(options)

    def partition(self, program):
        torch.set_default_dtype(torch.float64)

    own = BACKENDS["xnnpack"]
    made = own.lowering.make_partitioner
    lowering = replace(own.lowering, make_partitioner=make_partitioner)
    plugin = _complete(replace(own, lowering=lowering), "pytest")
    partitioner = plugin.lowering.make_partitioner(own.options())
    assert type(partitioner).__name__ == "XnnpackPartitioner"
    assert torch.get_default_dtype() == torch.float32


def test_actions_that_run_user_code(monkeypatch):
    from pipeline.config.emission import EmitConfig
    from pipeline.config.models import PackageConfig
    from pipeline.plan.kinds.compile import CompileInputs

    def compiles(emit=(), **method):
        methods = {"forward": MethodConfig(partitioners=(), **method)}
        emit = EmitConfig(passes=emit)
        config = PackageConfig(package="p", model="m", methods=methods, emit=emit)
        inputs = CompileInputs(config, ["forward"], {"forward": None})
        return runs_user_code(Action("compile", "m", "p", "forward", {}, inputs))

    passes = (PassSpec(reference="own:Change"),)
    assert not compiles()
    assert compiles(edge=EdgeConfig(passes=passes)) and compiles(emit=passes)


def test_the_program_that_is_loaded_is_that_of_the_key(export_model, tmp_path):
    """A result from a store or a remote can name any program of an archive."""
    source, _ = export_model("a")
    store = Store(tmp_path / "store")
    assert load_method(source, store)
    for wrong in ({"program": "0" * 64}, {"names": "0" * 64}):
        with pytest.raises(
            MissingBlobError, match=("forward: the record in the store or its remote")
        ):
            load_method(source._replace(**wrong), store)


KILLED = """
import os, signal
from pathlib import Path
assert os.environ["PYTHONHASHSEED"] == "0"
if not (flag := Path("flag")).exists():
    flag.touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_an_exporter_that_is_killed_is_tried_again_and_hashes_as_before(tmp_path):
    """For example for lack of memory. Its sets have the same order as in every other run."""
    bench = bench_for(tmp_path / "here", {"p": both(partitioners=[])})
    (model,) = (bench.root / "models").glob("*.py")
    model.write_text(KILLED + model.read_text())
    assert bench.process("export") == 0, bench.output
    assert (bench.root / "flag").exists()


def test_what_an_action_asked_comes_back_from_its_process(tmp_path, monkeypatch):
    """Its stages, its preprocess cache lookups, and the counts of the remote."""
    settings = RemoteSettings(f"file://{tmp_path}/remote")
    workspace = Workspace(tmp_path, Store(tmp_path / "store", settings), jobs=1)

    def perform(action, workspace, stages, always, *_):
        with stages.stage("lower"):
            workspace.store.remote.counts.hits += 2
            return False

    monkeypatch.setattr("pipeline.run.perform.perform", perform)
    monkeypatch.setattr("pipeline.run.perform.runs_user_code", lambda action: True)
    stages, action = Stages(), Action("validate", "m", "p", None, {}, None)
    loading = Action("quantize", "m", "p", "f", {"operators": ["team_ops"]}, None)
    for number, each in enumerate((action, loading), 1):
        done = worker.perform_reported(each, workspace, stages, False)
        assert (done.event.outcome, done.event.error, done.usage) == ("built", "", {})
        assert workspace.store.remote.counts.hits == 2 * number
    assert "lower" in [name for name, _, _ in stages.spans] and stages.peak_bytes
    fails = SourceError("a.yaml: is wrong")
    monkeypatch.setattr("pipeline.run.perform.perform", Mock(side_effect=fails))
    done = worker.perform_reported(action, workspace, stages, False)
    assert (done.event.outcome, done.event.error) == ("failed", "a.yaml: is wrong")


CHANGE = """
import os
import torch
from torch.fx.passes.infra.pass_base import PassBase

INPUTS = []  # the number of the process does not count


class Change(PassBase):
    def __init__(self):
        print("in process", os.getpid())

    def call(self, graph_module):
        torch.set_default_dtype(torch.float64)
        os.environ["PTE_LEFT"] = "1"
"""


@pytest.mark.slow
def test_a_pass_runs_apart_and_is_named_for_what_it_changes(tmp_path):
    method = {"partitioners": [], "edge": {"passes": ["own:Change"]}}
    bench = bench_for(tmp_path / "workspace", {"changed": both(**method)})
    (bench.root / "passes").mkdir()
    (bench.root / "passes" / "own.py").write_text(CHANGE)
    assert bench.doit("lower") == 0, bench.output
    names = ("features", "classify")
    logs = [(bench.root / f"build/.logs/changed/compile-{n}.log").read_text() for n in names]
    for log in logs:
        what = "pass own:Change changed the default dtype, the environment, which is put back"
        assert what in log
    first, second = (re.findall(r"in process (\d+)", log) for log in logs)
    assert first and second and first != second
