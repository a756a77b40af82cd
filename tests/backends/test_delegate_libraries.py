"""Libraries that add delegates to the runtime, and what the catalogue says if one is installed."""

import pytest

from pipeline.backends import BACKENDS
from pipeline.features.delegate_libraries.libraries import (
    VARIABLE,
    explain_missing,
    find_library,
)
from pipeline.plan.kinds.validate import ValidateInputs, measured_key
from pipeline.store.digest import hash_file
from tests.support.configs import read_configs


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    monkeypatch.setattr("pipeline.features.vulkan.entries.has_loader", lambda: True)
    monkeypatch.setattr("pipeline.features.vulkan.entries.has_driver", lambda: True)
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "libdelegates.so"
    path.write_bytes(b"\x7fELF\0VulkanBackend\0MLXBackendOptions\0")
    return path


def test_a_machine_without_one_says_how_to_add_it():
    for name, what in (("vulkan", "Vulkan"), ("webgpu", "Vulkan"), ("mlx", "MLX")):
        why = BACKENDS[name].machine["cannot_run"]
        assert f"has no {what} delegate" in why and VARIABLE in why


def test_a_listed_library_runs_what_it_holds_and_its_content_counts(library, monkeypatch):
    other = library.with_name("other.so")
    other.write_bytes(b"")
    monkeypatch.setenv(VARIABLE, f"{other}:{library}")
    for name in ("vulkan", "webgpu"):
        machine = BACKENDS[name].machine
        assert machine == {"runs_with": {"delegate library": hash_file(library)}}
    # There, the entry's name is only part of a longer one.
    assert "no MLX delegate" in BACKENDS["mlx"].machine["cannot_run"]
    assert find_library("VulkanBackend") == library


def test_a_library_that_is_not_there_is_named(library, monkeypatch):
    monkeypatch.setenv(VARIABLE, f"{library}.old:{library}")
    why = f"{VARIABLE} lists libdelegates.so.old, which does not exist"
    assert BACKENDS["vulkan"].machine["cannot_run"] == why


def test_vulkan_needs_a_driver_too(library, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(library))
    for missing in ("has_loader", "has_driver"):
        with monkeypatch.context() as patch:
            patch.setattr(f"pipeline.features.vulkan.entries.{missing}", lambda: False)
            assert "Vulkan loader" in BACKENDS["vulkan"].machine["cannot_run"]
    assert "cannot_run" not in BACKENDS["vulkan"].machine


def test_a_runtime_of_ones_own_that_has_it_needs_no_library(library, monkeypatch):
    monkeypatch.setattr(
        "pipeline.features.delegate_libraries.libraries._runtime_files", lambda: [library]
    )
    assert explain_missing("VulkanBackend", "Vulkan") == ""
    assert explain_missing("MLXBackend", "MLX")


def test_another_library_validates_again(library, tmp_path, monkeypatch):
    """The library's digest is part of the key of the measurements; without one there are none."""
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "p.yaml").write_text("model: any\nmethods: {run: {partitioners: [vulkan]}}\n")
    config = read_configs(folder).configs["p"]

    def key():
        return measured_key(ValidateInputs(config, {}, {}))

    without = key()
    assert without["not_run"].keys() == {"VulkanBackend"} and "runs_with" not in without
    monkeypatch.setenv(VARIABLE, str(library))
    before = key()
    assert before["not_run"] == {}
    library.write_bytes(library.read_bytes() + b"more")
    assert {name for name, value in key().items() if value != before[name]} == {"runs_with"}
