"""Inputs far outside their calibrated range are named."""

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.features.quantization_loss.input_ranges import describe_far_inputs
from pipeline.program.inputs import InputSet

OPERATORS = torch.ops.quantized_decomposed


class Quantized(nn.Module):
    """Only the second input is quantized, to the range from -0.05 to 0.0775."""

    def forward(self, mask, x):
        options = (0.0005, -28, -128, 127, torch.int8)
        x = OPERATORS.quantize_per_tensor.default(x, *options)
        return mask * OPERATORS.dequantize_per_tensor.default(x, *options)


@pytest.fixture(scope="module")
def quantized():
    return export(Quantized(), (torch.ones(3), torch.ones(3)))


def examples(*reaches):
    return [
        InputSet((torch.full((3,), 100.0), torch.tensor([0.0, 0.1, -reach]))) for reach in reaches
    ]


def test_the_input_is_named_with_its_range_and_how_far_examples_reach(quantized):
    assert describe_far_inputs(quantized, examples(0.1, 2.5)) == (
        "; examples of its input x reach 2.5, and calibration gave it the range from -0.05 to "
        "0.0775: calibrate on inputs like the examples"
    )


def test_a_few_outliers_are_no_cause(quantized):
    assert describe_far_inputs(quantized, examples(0.1, 0.3)) == ""
    assert describe_far_inputs(quantized, []) == ""
