"""A part of an output that a program concatenates is lost, while the output as a whole is not."""

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from pipeline.config.validation import ValidateConfig
from pipeline.features.quantization_loss.judge import QuantizationJudge
from pipeline.features.quantization_loss.parts import find_parts, name_part
from pipeline.validate.call_judge import compare_outputs

X = torch.randn(2, 3, 8)
DYNAMIC = ({0: Dim("batch", max=8), 2: Dim("length", min=2, max=64)},)


def names(forward, shapes=None, x=X):
    class Model(nn.Module):
        def forward(self, x):
            return forward(x)

    parts = find_parts(export(Model(), (x,), dynamic_shapes=shapes))
    return {place: [name_part(part) for part in found] for place, found in parts.items()}


def boxes_and_scores(x):
    return torch.cat([x.sigmoid() * 640, x.tanh(), x.tanh()[:, :2]], 1)


@pytest.mark.parametrize("shapes", [None, DYNAMIC], ids=["static", "dynamic"])
def test_parts_are_what_a_program_concatenates(shapes):
    expected = {0: ["[:, 0:3]", "[:, 3:6]", "[:, 6:8]"]}
    assert names(boxes_and_scores, shapes) == expected


def test_parts_are_followed_through_views_and_rounding():
    def moved(x):
        return boxes_and_scores(x).half().permute(0, 2, 1).unsqueeze(0).float()

    assert names(moved) == {0: ["[:, :, :, 0:3]", "[:, :, :, 3:6]", "[:, :, :, 6:8]"]}

    def stacked(x):
        return x * 2, torch.stack([x.sin(), x.cos()], -1).reshape(2, 3, 16)[..., :3]

    assert names(stacked) == {1: ["[:, :, 0:1]", "[:, :, 1:2]", "[:, :, 2:3]"]}

    def nested(x):
        return torch.cat([torch.cat([x[..., :2].exp(), y], -1) for y in (x, x.sin())], 1)

    assert names(nested)[0] == ["[:, 0:3]", "[:, 3:6]", "[:, :, 0:2]", "[:, :, 2:10]"]


def test_outputs_of_one_dimension_or_none_may_have_parts():
    def forward(x):
        return torch.cat([x[0, 0].sin(), x[0, 0].cos()]), x[0, 0], x.sum()

    assert names(forward) == {0: ["[0:8]", "[8:16]"]}


def test_a_value_that_is_too_large_for_memory_is_followed():
    def forward(x):
        table = x.unsqueeze(1) * x.unsqueeze(0)  # 2 ** 40 values
        return torch.cat([table[:2, :3], table[:2, 3:6]], 1), torch.cat([x[:2], x[:2].sin()])

    assert names(forward, x=torch.randn(1 << 20)) == {1: ["[0:2]", "[2:4]"]}


def test_what_is_computed_as_a_whole_has_no_parts():
    assert names(lambda x: torch.cat([x, x], 1).sum(-1)) == {}
    assert names(lambda x: torch.cat([x, x], 1)) == {}
    assert names(lambda x: torch.cat([x, x.sin()], 0), DYNAMIC) == {}  # of unknown sizes


def judged(actual, expected):
    limits = ValidateConfig(min_sqnr=15.0).select_limits("run")
    parts = {0: [(slice(None), slice(0, 4)), (slice(None), slice(4, 8))]}
    judge = QuantizationJudge(["output"], limits, parts=parts)
    errors = compare_outputs([actual], [expected])
    judge.add([actual], [expected], errors, generated=False)
    return judge.find_divergences()


def test_a_lost_part_fails_though_the_others_hide_it():
    boxes = torch.linspace(0, 640, 40).reshape(10, 4)
    scores = torch.linspace(0, 0.8, 40).reshape(10, 4)
    output = torch.cat([boxes, scores], 1)
    assert judged(output * 0.99, output) == []
    ((name, fault),) = judged(torch.cat([boxes, scores * 0], 1), output)
    assert name == "output"
    assert fault.startswith("[:, 4:8] alone, quantized, SQNR 0.0 dB over 40 values of 1 call ")
    assert fault.endswith("; return it as a separate output")
    assert judged(torch.cat([boxes, scores * 0], 1), torch.cat([boxes, scores * 0], 1)) == []


def test_a_part_of_few_values_may_be_near_zero_by_chance():
    """For example, one of three angles in the only example."""
    output = torch.tensor([[5.0, 4.0, 3.0, 2.0, 0.01, -0.02, 0.01, 0.02]])
    assert judged(output + 0.03, output) == []
    ((_, fault),) = judged(output.repeat(2, 1) + 0.03, output.repeat(2, 1))
    assert "over 8 values" in fault


def test_an_output_that_is_lost_as_a_whole_fails_once():
    output = torch.ones(10, 8)
    ((_, fault),) = judged(output * 0, output)
    assert "alone" not in fault
