"""A fault of one device is found and named: the device is a real runner with a library loaded into
it that no other device has.

It needs what `test_runner` needs.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch import nn
from torch.export.pt2_archive._package import package_pt2

from pipeline.config.validation import Limits
from pipeline.devices.interface import PackageFiles
from pipeline.devices.session import Session
from pipeline.features.locating.on_device import locate_divergence
from pipeline.features.native.addresses import BoardAddress
from pipeline.features.native.board import Board
from pipeline.features.native.build import find_command
from pipeline.features.native.calls import KeptCall
from pipeline.features.native.device import NativeDevice
from pipeline.features.native.device_failure import DeviceFailure
from pipeline.features.native.setups import find_setup
from pipeline.plan.kinds.validate import ValidateInputs, validate_action
from pipeline.plan.plan import Plan
from pipeline.program.inputs import InputSet
from pipeline.run.perform import perform
from pipeline.run.stages import Stages
from pipeline.store import digest
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from pipeline.validate.budget import Budget
from pipeline.validate.runs import JudgedCall
from tests.devices.test_bindings import exported
from tests.features.native.boards import SshServer, write_program
from tests.features.native.test_runner import EMULATED
from tests.support.configs import parse_config
from tests.support.located import build

FAULT = Path(__file__).with_name("faults") / "fault.cpp"
CONFIG = """
model: net
methods:
  plain: {{partitioners: []}}
  fused: {{partitioners: [xnnpack]}}
validate: {{devices: {devices}, inputs: 1, cases: [], {more}}}
"""
pytestmark = pytest.mark.slow


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return torch.tanh(self.norm(self.inner(x))) + x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 8)
        self.second = Block()

    def forward(self, x):
        return self.second(self.first(x)) * 0.5


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    root = tmp_path_factory.mktemp("locating")
    (root / "models").mkdir()
    (root / "partition_configs").mkdir()
    programs = {name: exported(Net(), torch.ones(2, 8)) for name in ("plain", "fused")}
    package_pt2(str(root / "models" / "net.pt2"), exported_programs=programs)
    workspace = Workspace(root, Store(root / ".store"), 1)
    configure(workspace, "[native]")
    plan = Plan(workspace)
    for action in plan.compiles("pack"):
        perform(action, workspace, Stages(), False)
    perform(plan.link("pack"), workspace, Stages(), False)
    return workspace


def configure(workspace, devices, more=""):
    path = workspace.root / "partition_configs" / "pack.yaml"
    path.write_text(CONFIG.format(devices=devices, more=more))


def find_ready_setup(device):
    setup = find_setup(device, Path("/"))
    if setup.problem:
        pytest.skip(f"{device}: {setup.problem}")
    return setup


def build_fault(setup, folder, every=1):
    """Build the fault for a device's runner; return the library to load into the runner."""
    folder.mkdir(exist_ok=True)
    library = folder / "fault.so"
    sdk = setup.sdk
    command = [setup.compiler, "-std=c++17", "-fPIC", "-shared", str(FAULT), "-o", str(library)]
    command += [f"-DEVERY={every}", '-DKERNEL="aten::tanh.out"', "-DET_EVENT_TRACER_ENABLED"]
    command += ["-DC10_USING_CUSTOM_GENERATED_MACROS", "-isystem", str(sdk / "include")]
    c10 = sdk / "include/executorch/runtime/core/portable_type/c10"
    command += ["-isystem", str(c10), "-Wl,--no-as-needed"]
    command += [str(sdk / f"lib/libexecutorch{part}.so") for part in ("", "_kernels_optimized")]
    subprocess.run([*command, "-ldl"], check=True)
    return library


def write_faulty_runner(setup, folder, every=1):
    """Write a program `runner` that loads the fault into the runner."""
    fault = build_fault(setup, folder, every)
    [program] = find_command(setup)
    write_program(folder / "runner", f'#!/bin/sh\nLD_PRELOAD={fault} exec {program} "$@"\n')


def validate(workspace):
    """Return the records of methods, keyed by name, and the error."""
    plan = Plan(workspace)
    files = {"pack.pte": digest.hash_file(workspace.package("pack") / "pack.pte")}
    action = validate_action(ValidateInputs(plan.config("pack"), files, plan.methods("pack")))
    error = ""
    try:
        perform(action, workspace, Stages(), True)
    except PipelineError as failure:
        error = str(failure)
    record = json.loads((workspace.package("pack") / "report.json").read_bytes())
    return {method["method"]: method for method in record["methods"]}, error


def test_a_fault_that_few_runs_show_is_found(workspace, tmp_path, monkeypatch):
    """The validation's calls end before the 45th call of the kernel. Repeated calls reach it, and
    so do the calls that search for its place."""
    write_faulty_runner(find_ready_setup("native"), tmp_path, every=45)
    monkeypatch.setenv("PTE_PIPELINE_NATIVE_RUNNER", str(tmp_path / "runner"))
    monkeypatch.chdir(workspace.root)
    configure(workspace, "[native]", "device_repeats: {native: 60}")
    methods, _ = validate(workspace)
    device = methods["plain"]["devices"]["native"]
    assert (device["repeats"], device["differing"]) == (80, 1)
    [failure] = methods["plain"]["failures"]
    place = "on native, but not on this machine, at aten.tanh.default in second"
    assert failure["what"].startswith(f"{place}: wrong in 1 of 60 calls on the same inputs: abs")
    configure(workspace, "[native]")
    methods, _ = validate(workspace)
    assert methods["plain"]["devices"]["native"]["verdict"] == "passed"


def test_a_fault_of_one_device_is_found_in_a_kernel_and_in_a_delegate(
    workspace, tmp_path, monkeypatch
):
    find_ready_setup("native")
    fault = build_fault(find_ready_setup(EMULATED), tmp_path)
    monkeypatch.setenv("QEMU_SET_ENV", f"LD_PRELOAD={fault}")
    monkeypatch.chdir(workspace.root)
    configure(workspace, f"['{EMULATED}', native]")
    methods, error = validate(workspace)
    assert f": on {EMULATED}, but not on this machine, at aten.tanh.default in second: abs" in error
    for name, where in (("plain", ""), ("fused", "in XnnpackBackend's delegate 1: ")):
        method = methods[name]
        assert method["devices"]["native"]["verdict"] == "passed"
        assert method["devices"][EMULATED]["verdict"] == "failed"
        [culprit] = method["culprits"]
        assert (culprit["operator"], culprit["module"]) == ("aten.tanh.default", "second")
        assert culprit["what"].startswith(f"on {EMULATED}, first divergence: aten.tanh.default in ")
        assert where in culprit["what"] and "100 % of the output's error" in culprit["what"]
        assert not method["culprit_notes"]
    assert methods["plain"]["culprits"][0]["kernel"] == "aten::tanh.out"
    assert methods["fused"]["culprits"][0]["backend"] == "XnnpackBackend"


@pytest.fixture
def board(workspace, tmp_path, monkeypatch):
    """A board on loopback, `pi5` in the settings of the workspace."""
    server = SshServer(tmp_path, "")
    server.make_client(tmp_path / "bin", "client")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    settings = workspace.root / "pyproject.toml"
    settings.write_text(f'[tool.pte-pipeline.native_boards]\npi5 = "{server.address}"\n')
    yield server
    settings.unlink()
    server.stop()


@pytest.mark.release
def test_a_fault_of_a_board_is_found_and_the_board_let_go(workspace, board, tmp_path, monkeypatch):
    """`native_runner` names the runner that is sent there, and it loads the fault."""
    write_faulty_runner(find_ready_setup("native"), tmp_path)
    monkeypatch.setenv("PTE_PIPELINE_NATIVE_RUNNER", str(tmp_path / "runner"))
    monkeypatch.chdir(workspace.root)
    configure(workspace, "[pi5]")
    methods, error = validate(workspace)
    assert ": on pi5, but not on this machine, at aten.tanh.default in second: abs" in error
    for method in methods.values():
        [culprit] = method["culprits"]
        assert (culprit["operator"], culprit["module"]) == ("aten.tanh.default", "second")
        assert culprit["what"].startswith("on pi5, first divergence: aten.tanh.default in ")
        assert not method["culprit_notes"]
    assert "XnnpackBackend's delegate 1" in methods["fused"]["culprits"][0]["what"]
    Board("pi5", BoardAddress(board.address), 1, 10**8).close()  # its lock is free


@pytest.mark.release
def test_the_emulator_that_is_wrong_about_sme_is_found():
    """QEMU 7.2 computes XNNPACK's int8 SME kernels differently from a processor."""
    setup = find_ready_setup("qemu:max")
    version = subprocess.run([setup.emulator[0], "--version"], capture_output=True, text=True)
    if " 7.2." not in version.stdout:
        pytest.skip(f"another emulator: {version.stdout.splitlines()[0]}")
    options = {"quantizer": "xnnpack", "per_channel": True}
    config = {"model": "m", "methods": {"run": {"partitioners": [], "quantize": options}}}
    spec = parse_config("p", config, "p.yaml").methods["run"].quantize
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    built = build(
        {"run": exported(Net(), x)},
        {"run": [XnnpackPartitioner()]},
        {"run": spec},
        [InputSet((x,))],
    )
    files = PackageFiles("quantized.pte", built.pte)
    expected = Session(files).run("run", [x])
    judged = JudgedCall("example 0", (), limits=(Limits(atol=0.1),))
    call = KeptCall("run", [x], expected, judged, ["output"])
    for name, is_wrong in (("qemu:max", True), ("qemu:max,sme=off", False)):
        device = NativeDevice(name, Path("/"))
        failure = DeviceFailure(device, files, [call])
        culprits, notes = locate_divergence(built.evidence(atol=0.1), failure, Budget())
        device.close(files)
        places = [(culprit["operator"], culprit["module"]) for culprit in culprits]
        assert places == [("aten.linear.default", "first")] * is_wrong, notes
