"""Methods that share state in a loaded package."""

import copy
import pickle
import warnings

import pytest
import torch

from pipeline import load_package, moments
from pipeline.devices import registry, session
from pipeline.devices.interface import PackageFiles
from pipeline.features.loading.shared_state import find_sharing
from pipeline.features.locating.interpreter import InterpreterDevice
from pipeline.store.errors import DeviceError
from tests.validate.test_sequences import METHODS, State, X, package

NAMES = ("prefill", "decode", "reads")


def expected():
    """Return what decode gives after prefill, for modules that share their state."""
    state = State()
    with torch.no_grad():
        METHODS["prefill"](state)(X)
        return METHODS["decode"](state)(X)


def load_silently(path, device):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return load_package(path, device=device, trust=True)


@pytest.mark.parametrize("device", ["", "interpreter"])
def test_state_is_carried_from_method_to_method(device):
    original = load_silently(package(*NAMES), device)
    for loaded in (original, copy.copy(original), pickle.loads(pickle.dumps(original))):
        loaded["prefill"](X)
        torch.testing.assert_close(loaded["decode"](X)[0], expected())
        assert loaded["decode"].device == "interpreter"
    original.reset()
    assert torch.equal(original["decode"](X)[0], X * 3)


def test_a_device_that_cannot_share_state_is_named_in_a_warning():
    with pytest.warns(UserWarning) as caught:
        loaded = load_package(package(*NAMES), device="executorch", trust=True)
    (line,) = (str(each.message) for each in caught)
    assert line.startswith("prefill-decode-reads-True-0.pte: methods decode, prefill, reads share ")
    assert line.endswith("; device='interpreter' shares it")
    assert caught[0].filename == __file__
    loaded["prefill"](X)
    assert torch.equal(loaded["decode"](X)[0], X * 3)  # without prefill's contribution


def test_without_an_interpreter_methods_that_share_state_do_not_load(monkeypatch):
    features = [f for f in moments.find_features() if "interpreter" not in f.devices]
    monkeypatch.setattr(moments, "find_features", lambda: features)
    monkeypatch.setattr(session, "devices", registry.devices.__wrapped__)
    files = PackageFiles.of(package(*NAMES))
    with pytest.raises(DeviceError, match='this installation has no feature "locating"'):
        session.Session(files, together=NAMES).load("decode")
    assert session.Session(files).run("decode", [X])


def test_a_package_that_the_interpreter_refuses_is_loaded_without_sharing(monkeypatch):
    def refuse(*arguments):
        raise DeviceError("", "missing operator team::add")

    monkeypatch.setattr(InterpreterDevice, "load_together", refuse)
    loaded = load_package(package(*NAMES), trust=True)
    with pytest.warns(
        UserWarning, match=("share state in this package, but not on this device: missing op")
    ):
        loaded["prefill"](X)
    assert loaded["decode"].device == "executorch"
    with pytest.raises(DeviceError, match="missing operator"):
        load_package(package(*NAMES), device="interpreter", trust=True)["prefill"](X)


@pytest.mark.parametrize("names", [NAMES, ("decode", "apart"), ("decode",)])
def test_methods_that_share_state_are_found_in_the_file(names):
    shared, apart = (package(*names, shared=each) for each in (True, False))
    assert set(find_sharing(PackageFiles.of(shared).plans)) == ({*names} if names[1:] else set())
    assert find_sharing(PackageFiles.of(apart).plans) == ()
    assert load_silently(apart, "executorch")["decode"].device == "executorch"
