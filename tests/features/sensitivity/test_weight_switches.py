"""torchao's programs: an operator that is switched to float is as quantized without its module."""

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.features.quantization.quantize import quantize
from pipeline.features.sensitivity.weight_switches import WeightSwitches
from pipeline.features.torchao.entries import TorchaoQuantize
from pipeline.program.graphs import find_origins
from pipeline.program.inputs import InputSet
from pipeline.store.errors import PipelineError


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(16, 32)
        self.body = nn.Linear(32, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(torch.relu(self.body(self.words(x))))


CALL = InputSet((torch.arange(8)[None],))
OPTIONS = {
    "quantizer": "torchao",
    "scheme": "int8_dynamic_activation_int4_weight",
    "embedding": {"bits": 8},
}


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    return export(Tagger().eval().requires_grad_(False), CALL.args)


def quantized(program, **modules):
    return quantize(program, TorchaoQuantize(**OPTIONS, modules=modules), [])


@pytest.mark.slow
def test_a_switch_is_a_module_in_float(program):
    whole = quantized(program)
    switches = WeightSwitches(program, whole, find_origins(whole, program), bits=4)
    by_module = {module: name for name, module in switches.operators.items()}
    assert [*by_module] == ["words", "body", "head"]
    assert switches.saved[by_module["words"]] == 16 * 32 * 3
    assert switches.saved[by_module["body"]] == 32 * 32 * 4 - 32 * 32 // 2
    for left_out in ("words", "body"):
        switches.switch(frozenset(switches.operators) - {by_module[left_out]})
        (actual,) = switches.run(CALL)
        expected = quantized(program, **{left_out: "none"}).module()(*CALL.args)
        torch.testing.assert_close(actual, expected)
    switches.switch(frozenset())
    torch.testing.assert_close(switches.run(CALL)[0], program.module()(*CALL.args))
    switches.switch(frozenset(switches.operators))
    torch.testing.assert_close(switches.run(CALL)[0], whole.module()(*CALL.args))


@pytest.mark.slow
def test_a_module_that_is_not_there_is_named(program):
    with pytest.raises(PipelineError, match="no module 'boddy' in the program; did you mean"):
        quantized(program, boddy="none")
