"""Packages on Arm's Corstone FVP, through the device of examples/delegates/corstone.

There is no FVP here: a stand-in takes the same command line and files, and computes with
ExecuTorch's runtime. The simulator itself isn't tested.
"""

import ast
import importlib.util
import os
import shutil
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.backends import BACKENDS
from pipeline.backends.delegate_devices import describe_device, find_device
from pipeline.backends.host import package_folders
from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.program.pte import read_plans
from pipeline.store.errors import PipelineError
from tests.support.bench import REPOSITORY, Bench

SOURCE = REPOSITORY / "examples" / "delegates" / "corstone" / "pte_corstone.py"
U55 = "FVP_Corstone_SSE-300_Ethos-U55"
# Reads what the simulator and the runner in it read, and writes what they write.
STAND_IN = f"""#!{sys.executable}
import re, shlex, sys
from pathlib import Path

parameters = dict(each.split("=", 1) for each in sys.argv if "=" in each)
(cpu,) = (name.rpartition(".")[0] for name in parameters if name.endswith("semihosting-cwd"))
assert parameters[cpu + ".semihosting-enable"] == "1"
folder = Path(parameters[cpu + ".semihosting-cwd"])
words = shlex.split(parameters[cpu + ".semihosting-cmd_line"].strip("'"))
assert words[:5] == ["executor_runner", "-m", "program.pte", "-o", "out"], words
FAULT
import torch
from pipeline.devices.bindings import Package
from pipeline.devices.interface import PackageFiles

files = PackageFiles.of(folder / words[2])
package, method = Package(files), next(iter(files.plans))  # the runner takes the first one
inputs = []
for name, declared in zip(words[6::2], package.signature(method).inputs, strict=True):
    values = torch.frombuffer(bytearray((folder / name).read_bytes()), dtype=declared.dtype)
    inputs.append(values.reshape(declared.sizes))
for number, output in enumerate(package.run(method, inputs)):
    (folder / f"out-{{number}}.bin").write_bytes(output.numpy().tobytes())
print("I [executorch:arm_executor_runner.cpp] Program complete, exiting.")
"""


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x, y):
        return x * self.factor, (x + y).to(torch.int32)


INPUTS = torch.linspace(-1, 1, 6).reshape(2, 3), torch.ones(2, 3)


@pytest.fixture(scope="module")
def files():
    programs = {name: export(Scale(n), INPUTS) for name, n in (("double", 2.0), ("triple", 3.0))}
    lowered = lower(programs, {name: [] for name in programs})
    return PackageFiles("scale.pte", bytes(emit(lowered).buffer))


@pytest.fixture
def corstone(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("pte_corstone", SOURCE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "pte_corstone", module)
    spec.loader.exec_module(module)
    set_up(monkeypatch, tmp_path)
    return module


def set_up(monkeypatch, folder, fault="", name=U55):
    """Set up a stand-in for the simulator, and a file in place of the runner."""
    fvp = folder / name
    fvp.write_text(STAND_IN.replace("FAULT", fault))
    fvp.chmod(fvp.stat().st_mode | stat.S_IXUSR)
    (folder / "runner.elf").write_bytes(b"ELF")
    monkeypatch.setenv("CORSTONE_FVP", str(fvp))
    monkeypatch.setenv("CORSTONE_RUNNER", str(folder / "runner.elf"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "factor"), [("double", 2), ("triple", 3)])
def test_each_method_runs_on_its_own_inputs(corstone, files, method, factor):
    """The runner runs a file's first method, so the file is changed to put another one there."""
    device = corstone.Corstone()
    loaded = device.load(files, method)
    x = INPUTS[0].T.contiguous().T  # another layout
    first, second = device.call(loaded, [x, INPUTS[1]])
    torch.testing.assert_close(first, x * factor)
    assert torch.equal(second, (x + 1).to(torch.int32))


@pytest.mark.parametrize("method", ["double", "triple"])
def test_any_method_is_put_first(corstone, files, method):
    loaded = corstone.Corstone().load(files, method)
    plans = read_plans(memoryview(loaded.pte))
    assert next(iter(plans)) == method and plans.keys() == files.plans.keys()


class EndedError(Exception):
    pass


def find_upstream_command(folder, board, runner):
    """Return the command with which ExecuTorch's own tests start the simulator.

    Their module imports packages that aren't installed here, so the function is taken from its
    text.
    """
    paths = [root / "backends/arm/test/runner_utils.py" for root in package_folders("executorch")]
    (path,) = filter(Path.is_file, paths)
    tree = ast.parse("from __future__ import annotations\n" + path.read_text())
    functions = [n for n in tree.body if getattr(n, "name", "") == "run_corstone"]
    commands = []

    def run(command):
        commands.append(command)
        raise EndedError

    names = {
        "Path": Path,
        "os": os,
        "shutil": shutil,
        "_run_cmd": run,
        "save_inputs_to_file": lambda *_: [str(folder / "i0.bin")],
    }
    module = ast.Module([tree.body[0], *functions], type_ignores=[])
    exec(compile(module, str(path), "exec"), names)
    manager = SimpleNamespace(buffer=b"pte", exported_program=lambda: None)
    with pytest.raises(EndedError):
        names["run_corstone"](manager, (), folder, board, runner)
    return commands[0]


@pytest.mark.parametrize(
    ("board", "name"),
    [
        ("corstone-300", U55),
        ("corstone-300-u65", "FVP_Corstone_SSE-300_Ethos-U65"),
        ("corstone-320", "FVP_Corstone_SSE-320"),
    ],
)
def test_the_command_is_that_of_upstreams_tests(corstone, board, name, tmp_path, monkeypatch):
    set_up(monkeypatch, tmp_path, name=name)
    runner = os.environ["CORSTONE_RUNNER"]
    fvp, *arguments = corstone.make_command(tmp_path, 1)
    upstream, *upstream_arguments = find_upstream_command(tmp_path, board, runner)
    assert Path(fvp).name == upstream
    pairs, upstream_pairs = (
        sorted(zip(each[::2], each[1::2], strict=True)) for each in (arguments, upstream_arguments)
    )
    assert pairs == upstream_pairs


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("print('E [executorch:runner] no kernel'); sys.exit()", "E [executorch:runner] no kernel"),
        ("print('Hard fault. irpt=3'); sys.exit()", "Hard fault. irpt=3"),
        ("sys.exit('no licence')", "the simulator ended with 1: no licence"),
        ("sys.exit()", "wrote no out-0.bin on the simulator"),
        ("(folder / 'out-0.bin').write_bytes(b'12'); sys.exit()", "wrote 2 bytes into out-0.bin"),
    ],
)
def test_what_goes_wrong_on_the_simulator_is_said(
    corstone, files, fault, said, monkeypatch, tmp_path
):
    set_up(monkeypatch, tmp_path, fault)
    device = corstone.Corstone()
    with pytest.raises(DeviceError) as caught:
        device.call(device.load(files, "double"), INPUTS)
    assert said in str(caught.value)


def test_a_simulator_that_is_not_there_is_named(corstone, files, monkeypatch, tmp_path):
    device = corstone.Corstone()
    loaded = device.load(files, "double")
    monkeypatch.setenv("CORSTONE_FVP", str(tmp_path / "none"))
    with pytest.raises(DeviceError, match=r"CORSTONE_FVP is '.*none', which is no file"):
        device.call(loaded, INPUTS)
    monkeypatch.delenv("CORSTONE_FVP")
    with pytest.raises(DeviceError, match="CORSTONE_FVP is not set"):
        device.call(loaded, INPUTS)


def test_the_environment_names_the_device_of_a_delegate(corstone, monkeypatch, tmp_path):
    backend = BACKENDS["ethos-u"]
    assert "FVP" in backend.explain_not_run()
    monkeypatch.setenv("PTE_DELEGATE_DEVICES", "Other=x,EthosUBackend=corstone")
    assert (find_device("EthosUBackend"), find_device("Else")) == ("corstone", "")
    assert not backend.explain_not_run() and "cannot_run" not in backend.machine
    facts = backend.machine["runs_with"]
    assert facts["device"] == "corstone"
    (tmp_path / "runner.elf").write_bytes(b"another ELF")
    assert describe_device("corstone")["CORSTONE_RUNNER"] != facts["CORSTONE_RUNNER"]
    assert BACKENDS["xnnpack"].device == ""
    monkeypatch.setenv("PTE_DELEGATE_DEVICES", "EthosUBackend")
    with pytest.raises(PipelineError, match="'EthosUBackend' must be a delegate and a device"):
        find_device("EthosUBackend")


MODEL = """
import torch
from torch.export import export


class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2


def export_methods():
    module = Double()
    return {"double": (export(module, (torch.ones(2, 3),)), module)}
"""
CONFIG = """
model: m
methods:
  double: {partitioners: [vulkan]}
validate: {inputs: 1, cases: []}
"""
# In the place of a simulator that runs the delegate.
TIMES = """import numpy
values = numpy.frombuffer((folder / "i0.bin").read_bytes(), numpy.float32)
(folder / "out-0.bin").write_bytes((values * FACTOR).tobytes())
sys.exit()
"""


@pytest.mark.slow
def test_a_build_validates_on_the_device(tmp_path, monkeypatch):
    """Vulkan's delegate, which lowers but doesn't run here, stands in for the simulator."""
    bench, site = Bench(tmp_path), tmp_path / "site"
    info = site / "pte_corstone-1.0.dist-info"
    for folder in (info, tmp_path / "models", tmp_path / "partition_configs"):
        folder.mkdir(parents=True)
    shutil.copy(SOURCE, site)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pte-corstone\nVersion: 1.0\n")
    points = "[pte_pipeline.devices]\ncorstone = pte_corstone:Corstone\n"
    (info / "entry_points.txt").write_text(points)
    (tmp_path / "dodo.py").write_text("from pipeline.tasks import *\n")
    (tmp_path / "models" / "m.py").write_text(MODEL)
    (tmp_path / "partition_configs" / "p.yaml").write_text(CONFIG)
    set_up(monkeypatch, tmp_path, TIMES.replace("FACTOR", "2"))
    variables = {
        "PYTHONPATH": f"{site}{os.pathsep}{REPOSITORY}",
        "PTE_DELEGATE_DEVICES": "VulkanBackend=corstone",
    }
    assert bench.doit(**variables) == 0, bench.output
    assert " passed " in bench.output
    assert bench.doit(**variables) == 0
    assert "up to date: 1 package" in bench.output
    # A changed simulator means a new run.
    set_up(monkeypatch, tmp_path, TIMES.replace("FACTOR", "3"))
    assert bench.doit(**variables) == 1
    assert "absolute error" in bench.output
