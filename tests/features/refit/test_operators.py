"""Operators on constants are seen on each stack of modes, and those on fake tensors skipped."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from pipeline.features.refit import operators
from pipeline.features.refit.hooks import watched
from pipeline.features.refit.watch import Watch


def watching():
    """Return whether torch's stack holds the mode that watches."""
    stack = [
        torch._C._get_dispatch_stack_at(place)
        for place in range(torch._C._len_torch_dispatch_stack())
    ]
    return sum(isinstance(mode, operators._Mode) for mode in stack) == 1


def test_the_installed_torch_is_known():
    assert operators._is_reviewed()


def test_the_watch_is_off_the_stack_where_only_fake_tensors_are():
    fake, other = FakeTensorMode(), FakeTensorMode()
    with watched(Watch()):
        for _ in range(2):
            assert watching()
            with fake:
                assert not watching()
                with fake, other:
                    assert not watching()
                with FunctionalTensorMode():
                    assert watching()
                    with fake:
                        assert watching()
                assert not watching()
                with unset_fake_temporarily():
                    assert watching()
                    with other:
                        assert not watching()
                    assert watching()
                with _disable_current_modes():
                    assert watching()
                assert not watching()
    assert not torch._C._len_torch_dispatch_stack()


def test_another_mode_is_left_in_its_place():
    class Other(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with watched(Watch()), Other(), FakeTensorMode():
        assert watching()
        assert isinstance(torch.ones(2) + 1, FakeTensor)
    assert not torch._C._len_torch_dispatch_stack()


def test_an_error_within_a_mode_leaves_the_stack_as_it_was():
    with watched(Watch()):
        with pytest.raises(ZeroDivisionError), FakeTensorMode():
            1 / 0  # noqa: B018
        assert watching()


def read(weight):
    with unset_fake_temporarily():
        return weight.sum().item()


def keep(weight):
    with unset_fake_temporarily():
        first = weight[:1].clone()
    return torch.ops.aten.lift_fresh(first).item()


CALLS = {
    "with a fake tensor": lambda w: torch.ones(3) + w,
    "of a listed tensor": lambda w: torch.cat([w, torch.ones(3)]),
    "by a keyword": lambda w: torch.clamp(torch.ones(3), min=w),
    "twice": lambda w: [torch.ones(3) * w, torch.ones(3) * w],
    "in place": lambda w: torch.ones(3).add_(w),
    "of the constant": lambda w: w.add_(torch.ones(3)),
    "that keeps its value": keep,
    "that asks for values": lambda w: w[w > 0].shape,
    "that reads": lambda w: w.sum().item(),
    "without the mode": read,
    "of another view": lambda w: torch.ones(3, dtype=torch.cfloat) + torch.complex(w, w).conj(),
    "traced": lambda w: make_fx(lambda x: x + w, tracing_mode="real")(torch.ones(3)),
}
READING = "that keeps its value", "that asks for values", "without the mode"


@pytest.mark.parametrize("name", CALLS)
def test_what_is_seen_does_not_depend_on_where_the_watch_is(name, monkeypatch):
    records = []
    for aside in (True, False):
        monkeypatch.setattr(operators, "_is_reviewed", lambda aside=aside: aside)
        watch, weight = Watch(), torch.tensor([1.0, -2.0, 3.0])
        watch.add_source(weight, "run", "weights", "head.weight")
        with watched(watch), FakeTensorMode(allow_non_fake_inputs=True):
            try:
                CALLS[name](weight)
            except Exception as error:
                records.append(type(error))
        guards = [(guard["view"], guard["digest"]) for guard in watch.guards]
        records.append([watch.steps, guards, list(watch.gaps)])
    assert records[: len(records) // 2] == records[len(records) // 2 :]
    assert bool(records[-1][1]) == (name in READING)
