"""Kernels that the C++ SDK lacks: the libraries that a runner loads, and its messages without them.

The slow tests need the SDK of ExecuTorch 1.5's wheel next to PyTorch, like `test_runner.py`.
"""

from pathlib import Path

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower

from pipeline.config.validation import Limits
from pipeline.devices.interface import PackageFiles
from pipeline.features.native import device as native_device
from pipeline.features.native.calls import CallLog, KeptCall
from pipeline.features.native.device import NativeDevice
from pipeline.features.native.kernel_libraries import (
    explain_missing,
    find_sdk_library,
    has_kernels,
    is_for_machine,
    make_arguments,
)
from pipeline.features.native.setups import Setup, find_setup
from pipeline.features.native.verdicts import run_calls
from pipeline.store.file_digests import FileDigests
from pipeline.validate.budget import Budget
from pipeline.validate.runs import JudgedCall

UPDATE = "llama::update_cache.out"


def write_library(path, *operators, machine=62):
    path.parent.mkdir(parents=True, exist_ok=True)
    names = b"".join(name.encode() + b"\0" for name in operators)
    path.write_bytes(b"\x7fELF".ljust(18, b"\0") + machine.to_bytes(2, "little") + names)
    return path


@pytest.fixture
def setup(tmp_path):
    """Make a stand-in for an SDK with its language-model library, and a runner built with it."""
    setup = Setup("native")
    setup.sdk = tmp_path / "wheel" / "executorch"
    folder = setup.sdk / "extension" / "llm" / "custom_ops"
    write_library(folder / "libcustom_ops_aot_lib.so", UPDATE, "aten::add.out")
    (tmp_path / "runner").mkdir()
    (tmp_path / "runner" / "_C.cpython-311.so").touch()
    return setup


def test_a_library_is_loaded_for_packages_that_need_it(setup, tmp_path):
    team = write_library(tmp_path / "libteam.so", "team::scale.out")
    setup.kernels = [*setup.sdk.rglob("lib*.so"), team]
    program = tmp_path / "runner" / "pte_runner"
    assert make_arguments(setup, program, ["aten::add.out"]) == []
    assert make_arguments(setup, program, ["team::scale.out"]) == ["--kernels", str(team)]
    words = make_arguments(setup, program, ["aten::add.out", UPDATE])
    assert [Path(word).name for word in words[1::2]] == [
        "_C.cpython-311.so",
        "libcustom_ops_aot_lib.so",
    ]


def test_a_name_is_a_whole_one(tmp_path):
    library = write_library(tmp_path / "lib.so", "llama::update_cache_with_indices.out")
    assert not has_kernels(library, [UPDATE, "llama::update_cache"])
    assert not has_kernels(tmp_path / "none.so", [UPDATE])
    (tmp_path / "empty.so").touch()
    assert not has_kernels(tmp_path / "empty.so", [UPDATE])


def test_the_library_of_an_sdk_needs_torch_beside_it(setup):
    assert find_sdk_library(setup.sdk) == []
    reason = explain_missing(setup, [UPDATE])
    assert reason.startswith(f"its runner has no kernel for {UPDATE}; unpack PyTorch's wheel to ")
    write_library(setup.sdk.parent / "torch" / "lib" / "libtorch_cpu.so")
    library, version = find_sdk_library(setup.sdk)
    assert library.name == "libcustom_ops_aot_lib.so" and version.name == "version.py"
    assert explain_missing(setup, ["team::scale.out"]).endswith(
        "no kernel for team::scale.out; set native_kernels to a library that registers it"
    )


def test_libraries_of_a_setting_are_those_of_a_processor(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    here = write_library(tmp_path / "x86.so", "team::scale.out")
    there = write_library(tmp_path / "arm.so", "team::scale.out", machine=183)
    assert is_for_machine(there, "aarch64") and not is_for_machine(tmp_path / "none", "aarch64")
    project = tmp_path / "pyproject.toml"
    project.write_text('[tool.pte-pipeline]\nnative_kernels = ["x86.so", "arm.so"]\n')
    native, emulated = (find_setup(name, tmp_path) for name in ("native", "qemu:max"))
    assert here in native.kernels and there not in native.kernels
    assert emulated.kernels[:1] == [there]
    before = native.describe(FileDigests())
    write_library(here, "team::shift.out")
    assert native.describe(FileDigests()) != before  # so validations are repeated
    project.write_text('[tool.pte-pipeline]\nnative_kernels = ["absent.so"]\n')
    problem = find_setup("native", tmp_path).problem
    assert "native_kernels: " in problem and problem.endswith("absent.so is not a file")


class Cache(torch.nn.Module):
    """Writes its input to a cache, and attends over the cache."""

    def __init__(self):
        super().__init__()
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, 8, 2, 8))

    def forward(self, query):
        torch.ops.llama.update_cache(query, self.keys, 0)
        torch.ops.llama.update_cache(query * 2, self.values, 0)
        return torch.ops.llama.custom_sdpa(query, self.keys, self.values, 0, None, 0.0, False)


@pytest.fixture(scope="module")
def files():
    __import__("executorch.extension.llm.custom_ops.custom_ops")
    program = torch.export.export(Cache(), (torch.ones(1, 1, 2, 8),))
    content = to_edge_transform_and_lower({"step": program}).to_executorch().buffer
    return PackageFiles("cache.pte", content)


@pytest.fixture
def device():
    setup = find_setup("native", Path("/"))
    if setup.problem or not setup.kernels:
        pytest.skip(f"native: {setup.problem or 'no PyTorch next to the SDK'}")
    return NativeDevice("native", Path("/"), 60.0)


def run_step(device, files):
    query = torch.arange(16.0).reshape(1, 1, 2, 8)
    judged = JudgedCall("example 0", (), 0, "example 0", limits=(Limits(atol=1e-5),))
    log = CallLog()
    log.add(KeptCall("step", [query], [Cache()(query)], judged, ["output"]))
    outcomes, _ = run_calls(device, files, log, Budget())
    device.close(files)
    return outcomes["step"]


@pytest.mark.slow
def test_a_language_models_kernels_run_on_the_runner(files, device):
    """They give what PyTorch gives; the memory figure excludes PyTorch's libraries."""
    outcome = run_step(device, files)
    assert (outcome.faults, outcome.lacks, outcome.calls) == ([], "", 1)
    assert 0 < outcome.memory["at_start"] <= outcome.memory["peak"] < 30_000_000


@pytest.mark.slow
def test_a_method_whose_kernels_can_not_be_loaded_is_not_run(files, device, tmp_path):
    device.setup.kernels = [write_library(tmp_path / "lib.so", UPDATE)]
    outcome = run_step(device, files)
    assert not outcome.faults and not outcome.calls and outcome.lacks_operators
    assert outcome.lacks.startswith("its runner has no kernel for llama::update_cache.out, llama::")
    assert "with a library of it, it does not open: the runner ended (exit status 2)" in (
        outcome.lacks
    )


@pytest.mark.slow
def test_a_runner_that_the_user_named_is_the_apps_runtime(files, device):
    """If that runtime lacks a kernel, the package fails."""
    device.setup.kernels = []
    device.setup.runner = Path(device._command[-1])
    outcome = run_step(device, files)
    assert outcome.faults[0] == ("", "", f"its runtime has no kernel for {UPDATE}", None)
    assert native_device.list_called_operators(files, ["step"]) >= {UPDATE}
