"""The contracts of the device interface, on every device of this package."""

import subprocess
import sys

import pytest
import torch

from pipeline.devices.interface import Device, DeviceError, PackageFiles
from pipeline.devices.registry import Registry, devices
from pipeline.devices.session import Session
from pipeline.program.pte import read_plans
from pipeline.store.errors import PipelineError
from tests.devices.test_bindings import package_file, write
from tests.support.bench import REPOSITORY

X = torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture(params=["executorch", "interpreter"])
def device(request):
    return devices().get(request.param)


@pytest.fixture
def files():
    return PackageFiles.of(package_file())


# The registry.


class Other(Device):
    """A device that does nothing."""

    def load(self, files, method):
        return None

    def call(self, loaded, values):
        return []


def test_a_name_twice_is_an_error_that_names_both():
    registry = Registry()
    registry.register("other", Other, "first")
    with pytest.raises(PipelineError, match="'other' of second: is already defined by first"):
        registry.register("other", Other, "second")


def test_an_unknown_device_is_an_error_that_names_the_known_ones():
    with pytest.raises(PipelineError, match="no device 'interpeter'; did you mean 'interpreter'"):
        devices().get("interpeter")
    with pytest.raises(
        PipelineError, match=r"known: board:<name>, executorch, interpreter, native, qemu:<cpu>$"
    ):
        devices().get("gpu")


def test_a_device_is_made_once_and_when_it_is_asked_for():
    registry = Registry()
    registry.register("broken", lambda: 1 / 0, "a plugin")
    registry.register("other", Other)
    assert registry.names() == ["broken", "other"]
    assert registry.get("other") is registry.get("other")
    with pytest.raises(PipelineError, match="'broken' of a plugin: cannot be made: ZeroDiv"):
        registry.get("broken")


@pytest.mark.slow
def test_the_executorch_device_does_not_import_exir():
    code = f"""
import sys
from pathlib import Path
from pipeline.devices.interface import PackageFiles
from pipeline.devices.session import Session
Session(PackageFiles.of(Path({str(package_file())!r}))).load("encode")
sys.exit("executorch.exir" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, timeout=60)


# Devices.


def test_methods_are_loaded_and_called(device, files):
    with pytest.raises(PipelineError, match="no method 'decode'"):
        device.load(files, "decode")
    embed = device.load(files, "embed")
    rows, tokens = device.call(embed, [torch.tensor([1, 2, 6]), torch.tensor(2.0)])
    assert rows.shape == (3, 4) and tokens.tolist() == [1, 2, 6]


def test_a_loaded_method_has_state_of_its_own(device, files):
    first = device.load(files, "count")
    assert [device.call(first, [X])[0][0].item() for _ in range(3)] == [2.0, 4.0, 6.0]
    again = device.load(files, "count")
    assert device.call(again, [X])[0][0].item() == 2.0
    assert device.call(first, [X])[0][0].item() == 8.0


def test_inputs_are_left_alone_and_outputs_stay(device, files):
    loaded, x = device.load(files, "count"), X.clone()
    (first,) = device.call(loaded, [x])
    (second,) = device.call(loaded, [x])
    assert (first[0].item(), second[0].item()) == (2.0, 4.0)
    assert torch.equal(x, X)


def test_what_cannot_be_called(device, files):
    count, embed = device.load(files, "count"), device.load(files, "embed")
    with pytest.raises(DeviceError, match="method 'count' takes 1 inputs, 0 given"):
        device.call(count, [])
    with pytest.raises(DeviceError, match="method 'embed' fails"):
        device.call(embed, [torch.tensor([9, 9, 9]), torch.ones(())])
    assert device.call(count, [X])[0].tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("name", ["executorch", "interpreter"])
def test_the_text_of_a_method_describes_what_runs(name, files):
    text = Session(files, name).text("embed")
    assert text.startswith("embed(int64[3], float32[]) -> (float32[3, 4]")
    assert "embedding" in text and len(text.splitlines()) >= 3


# Which device runs which backend.


def test_plans_are_read_without_exir():
    plans = read_plans(package_file().read_bytes())
    assert [backend for backend, _ in plans["encode"].delegates] == ["XnnpackBackend"]
    assert plans["encode"].operators == plans["count"].delegates == ()
    assert "aten::copy_" in plans["count"].operators
    assert read_plans(b"no package") == read_plans(b"") == {}
    content = package_file().read_bytes()
    for end in (12, 60, 200):
        assert isinstance(read_plans(content[:end]), dict)


def test_what_no_device_has_runs_on_executorch_which_says_so():
    content = package_file().read_bytes().replace(b"XnnpackBackend", b"OtherBackend..")
    session = Session(PackageFiles.of(write("nobody.pte", content)))
    assert session.choose_device("encode") == "executorch"
    with pytest.raises(DeviceError, match="method 'encode' does not load: missing backend"):
        session.load("encode")
