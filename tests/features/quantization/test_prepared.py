"""The prepared program, which observes and doesn't round, agrees with the float program."""

import copy

import pytest
import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from torch.export import export
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

from pipeline.features.quantization.prepared import PreparedComparison, seeded
from pipeline.features.quantization.warnings import describe_divergence
from pipeline.program.inputs import InputSet


class TwoNorms(torch.nn.Module):
    """Two batch norms over one convolution, which PT2E folds into the same weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.first, self.second = torch.nn.BatchNorm2d(8), torch.nn.BatchNorm2d(8)
        for norm in (self.first, self.second):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.2, 4.0)

    def forward(self, x):
        return self.first(self.conv(x)).mean((2, 3)), self.second(self.conv(x)).mean((2, 3))


class ModuleEach(TwoNorms):
    """The same model, changed as the message advises."""

    def __init__(self):
        super().__init__()
        self.other = copy.deepcopy(self.conv)

    def forward(self, x):
        return self.first(self.conv(x)).mean((2, 3)), self.second(self.other(x)).mean((2, 3))


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("total", torch.zeros(2, 8))

    def forward(self, x):
        self.total.add_(x)
        return self.layer(self.total)


class IllConditioned(torch.nn.Module):
    """Amplifies small differences, after a batch norm that is folded."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)
        self.norm.running_var.uniform_(0.2, 4.0)

    def forward(self, x):
        return torch.sin(1e6 * self.norm(self.conv(x)))


IMAGES = [torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(n)) for n in range(3)]
ROWS = [torch.randn(2, 8, generator=torch.Generator().manual_seed(n)) for n in range(3)]


def compare(model, inputs, training=False):
    """Return the record of a model that is prepared for XNNPACK and observes inputs."""
    program = export(model.train(training).requires_grad_(False), (inputs[0],))
    module = program.module(check_guards=False)
    state = {name: value.clone() for name, value in module.named_buffers()}
    config = get_symmetric_quantization_config(is_per_channel=True)
    prepared = prepare_pt2e(module, XNNPACKQuantizer().set_global(config))
    comparison = PreparedComparison(program)
    for number, value in enumerate(inputs):
        own = InputSet((value,), {}, f"data/x.npz[{number}]")
        expected = comparison.expect(own)
        with torch.no_grad(), seeded(number):
            comparison.add(own, expected, prepared(value.clone()))
    for name, value in prepared.named_buffers():
        if name in state and value.shape == state[name].shape:
            value.copy_(state[name])
    return comparison.judge(prepared)


def test_a_wrong_fold_is_found_where_it_is():
    record = compare(TwoNorms().eval(), IMAGES)
    worst, other = record["outputs"]
    assert (record["agrees"], record["calls"]) == (False, 3)
    assert (worst["output"], worst["agrees"]) == ("output[1]", False)
    assert worst["sqnr_db"] < 20 < 100 < other["sqnr_db"]
    assert worst["inputs"].startswith("calibration input ")  # no path: keys don't contain it
    divergence = record["divergence"]
    assert (divergence["operator"], divergence["module"]) == ("aten.conv2d", "conv")
    assert divergence["folded"] == [("aten.batch_norm", "second")]
    assert divergence["shared"] == "conv.weight"
    assert "give each call a module of its own" in describe_divergence(record)


AGREEING = {
    "the advice is followed": (ModuleEach, IMAGES, False),
    "state goes on from call to call": (Counter, ROWS, False),
    "the same random numbers are drawn": (
        lambda: torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)),
        ROWS,
        True,
    ),
}


@pytest.mark.parametrize(("make", "inputs", "training"), AGREEING.values(), ids=AGREEING)
def test_right_transformations_agree_as_float_does(make, inputs, training):
    record = compare(make(), inputs, training)
    assert record["agrees"] is True and record["divergence"] is None
    assert all(output["sqnr_db"] > 100 for output in record["outputs"])


def test_what_rounding_alone_moves_as_far_is_not_judged():
    record = compare(IllConditioned(), IMAGES)
    (output,) = record["outputs"]
    assert output["sqnr_db"] < 40
    assert (record["agrees"], output["agrees"]) == (None, None)


def test_torchs_random_numbers_stay_as_they_were():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    compare(Counter(), ROWS)
    torch.manual_seed(3)
    assert torch.equal(before, torch.get_rng_state())
    with seeded(5):
        torch.rand(1)
    assert torch.equal(before, torch.get_rng_state())
