"""Buffers that Core ML keeps despite `take_over_mutable_buffer: false`, and the remedy."""

import pytest
import torch

from pipeline.backends import BACKENDS, PartitionerSpec
from pipeline.compile.lower import lower
from pipeline.compile.module_filter import make_filtered_partitioners
from pipeline.features.coreml.reproducible import reproducible
from pipeline.features.remedies.explain_error import explain_error
from pipeline.store.errors import PipelineError
from tests.support.buffers import Added, Assigned, Constant, Given, Scattered, Window
from tests.support.located import ROOT
from tests.support.releases import fixed_in

OUTSIDE = {"take_over_mutable_buffer": False}
OTHERS = (Given, Scattered, Assigned)


def lowered(module, **options):
    """Return the partitioner, and the lowered program."""
    program = torch.export.export(module().eval(), (torch.ones(1, 2),))
    spec = PartitionerSpec(name="coreml", options=BACKENDS["coreml"].options(**options))
    (partitioner,) = made = make_filtered_partitioners([spec])
    with reproducible():
        edge = lower({"run": program}, {"run": made})
    return partitioner, edge


def states(edge):
    """Count the operators that read a state in the models."""
    return bytes(edge.to_executorch().buffer).count(b"read_state")


@fixed_in(1, 5)
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


@fixed_in(1, 5)
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
