"""What a quantized program predicts about a package that was never lowered."""

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.features.tuning.prediction import (
    choose_inputs,
    measure_constants,
    measure_errors,
)
from pipeline.features.tuning.screening import predict_package
from pipeline.program.inputs import InputSet


def program_of(weight):
    layer = nn.Linear(16, 8, bias=False)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return export(layer.eval(), (torch.zeros(1, 16),))


def inputs_of(*values):
    return [InputSet((torch.full((1, 16), value),), {}, f"example {value}") for value in values]


@pytest.mark.slow
def test_errors_are_the_worst_of_all_outputs():
    weight = torch.arange(1.0, 129.0).reshape(8, 16)
    program, noisy = program_of(weight), program_of(weight * 1.1)
    errors = measure_errors(program, noisy, inputs_of(0.5, 1.0))
    assert errors["sqnr"] == pytest.approx(20, abs=0.01)  # a tenth
    assert errors["max_abs"] == pytest.approx(0.1 * float(weight[-1].sum()), rel=1e-4)
    assert measure_errors(program, program, inputs_of(1.0)) == {"sqnr": 120.0, "max_abs": 0.0}


class Packed(nn.Module):
    def __init__(self, *values):
        super().__init__()
        for number, value in enumerate(values):
            self.register_buffer(f"weight{number}", value)

    def forward(self, x):
        return x + sum(buffer.float().sum() for buffer in self.buffers())


@pytest.mark.slow
def test_constants_are_counted_as_delegates_store_them():
    four_bits = (torch.arange(100) % 16 - 8).to(torch.int8)
    eight_bits = torch.arange(100, dtype=torch.int8)
    module = Packed(four_bits, eight_bits, torch.ones(10), torch.ones(10))
    sizes = measure_constants(export(module, (torch.zeros(1),)))
    assert sorted(sizes.values()) == [40, 50, 100]  # the ones are stored once


@pytest.mark.slow
def test_every_second_example_is_held_out():
    examples = inputs_of(*range(100))
    chosen = choose_inputs(None, examples)
    assert len(chosen) == 16 and chosen[0] is examples[0]
    assert all(examples.index(inputs) % 2 == 0 for inputs in chosen)


def test_methods_with_the_same_partitioners_share_constants():
    part = {"constants": {"weight": 100, "bias": 10}, "errors": {}}
    quantized = {"constants": {"packed": 25, "bias": 10}, "errors": {"sqnr": 40.0, "max_abs": 0.1}}
    alike = [("xnnpack",)] * 3
    assert predict_package([part, part, quantized], alike)["size"] == 135
    mixed = [("xnnpack",), (), ("xnnpack",)]
    assert predict_package([part, part, quantized], mixed) == {
        "size": 245,
        "sqnr": 40.0,
        "max_abs": 0.1,
    }
    assert predict_package([part, None], alike[:2]) == {}
