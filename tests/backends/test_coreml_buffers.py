"""Buffers that Core ML keeps against `take_over_mutable_buffer: false`, and what mends it.

Each remedy is followed here, as a config or a model would follow it.
"""

import pytest
import torch
from torch import nn

from pipeline.backends import BACKENDS, PartitionerSpec
from pipeline.backends.coreml.reproducible import reproducible
from pipeline.compile.lower import lower
from pipeline.compile.module_filter import make_filtered_partitioners
from pipeline.run.explain_error import explain_error
from pipeline.store.errors import PipelineError
from tests.support.located import ROOT

OUTSIDE = {"take_over_mutable_buffer": False}


class Window(nn.Module):
    """Its new value is that of a slice, which reads a cat."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.zeros(1, 8))

    def forward(self, x):
        new = torch.cat([self.window, x], 1)[:, -8:]
        self.window.copy_(new)
        return self.give(new)

    def give(self, new):
        return new.sum()


class Given(Window):
    def give(self, new):
        return new


class Copied(Window):
    def give(self, new):
        return new.clone()


class Scattered(Window):
    def forward(self, x):
        self.window[:, :-2] = self.window[:, 2:].clone()
        self.window[:, -2:] = x
        return self.window.sum()


class Assigned(Window):
    def forward(self, x):
        total = self.window + x.sum()
        self.window = x.repeat(1, 4)
        return total


class Added(Window):
    """Its new value is that of an operator which reads it, so upstream sees that it changes."""

    def forward(self, x):
        self.window.add_(x.repeat(1, 4))
        return self.window * 2


class Constant(Window):
    def forward(self, x):
        return self.window + x.repeat(1, 4)


OTHERS = (Given, Scattered, Assigned)


def lowered(module, backend="coreml", **options):
    """Return the partitioner, and the lowered program."""
    program = torch.export.export(module().eval(), (torch.ones(1, 2),))
    spec = PartitionerSpec(name=backend, options=BACKENDS[backend].options(**options))
    (partitioner,) = made = make_filtered_partitioners([spec])
    with reproducible():
        edge = lower({"run": program}, {"run": made})
    return partitioner, edge


def states(edge):
    """Count what reads a state in the models."""
    return bytes(edge.to_executorch().buffer).count(b"read_state")


@pytest.mark.parametrize(
    ("module", "operator"),
    [
        (Window, "aten.slice_copy.Tensor"),
        (Assigned, "aten.repeat.default"),
        pytest.param(Given, "aten.slice_copy.Tensor", marks=pytest.mark.slow),
        pytest.param(Scattered, "aten.slice_scatter.default", marks=pytest.mark.slow),
    ],
)
def test_a_lowering_that_fails_on_it_names_the_buffer(module, operator):
    with pytest.raises(PipelineError, match=rf"run: .*'window' as a state.*{operator}") as error:
        lowered(module, **OUTSIDE)
    said = explain_error(error.value, ROOT)
    assert "`take_over_constant_data: false`" in said
    assert "modules" not in said


def test_a_lowering_that_passes_warns_of_it():
    partitioner, edge = lowered(Window, **OUTSIDE, minimum_deployment_target="ios18")
    (warning,) = partitioner.warnings
    assert "the buffer 'window'" in warning and "ios18" in warning
    assert states(edge)


@pytest.mark.parametrize(
    "module", [Window, *(pytest.param(m, marks=pytest.mark.slow) for m in OTHERS)]
)
def test_the_remedy_keeps_it_outside(module):
    partitioner, edge = lowered(module, **OUTSIDE, take_over_constant_data=False)
    assert not partitioner.warnings
    assert not states(edge)


@pytest.mark.parametrize("module", [Added, Constant])
def test_there_is_no_warning_without_a_state(module):
    partitioner, edge = lowered(module, **OUTSIDE)
    assert not partitioner.warnings
    assert not states(edge)


def failure(module, backend="coreml", **options):
    """Return how the failing lowering is explained."""
    with pytest.raises(Exception) as error:
        lowered(module, backend, **options)
    return explain_error(error.value, ROOT)


def test_states_need_ios18_and_the_remedies_are_right():
    said = failure(Window)
    assert "`minimum_deployment_target: ios18`" in said and "keep it out" not in said
    assert states(lowered(Window, minimum_deployment_target="ios18")[1])
    assert not states(lowered(Added, **OUTSIDE)[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "options"), [("coreml", {"minimum_deployment_target": "ios18"}), ("vulkan", {})]
)
def test_what_is_written_to_a_buffer_and_returned_is_copied(backend, options):
    said = failure(Given, backend, **options)
    assert "the buffer window" in said and "`.clone()`" in said
    lowered(Copied, backend, **options)


@pytest.mark.slow
def test_what_is_written_to_a_buffer_and_used_outside_is_copied():
    class Used(Window):
        def give(self, new):
            return torch.acosh(new)

    class CopiedThere(Window):
        def give(self, new):
            return torch.acosh(new.clone())

    assert "use a copy there, `.clone()`" in failure(Used, "vulkan")
    lowered(CopiedThere, "vulkan")
