"""Programs of torchao and NNCF: an operator switched to float equals an unquantized one."""

from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.backends import QUANTIZERS
from pipeline.features.quantization.quantize import quantize
from pipeline.features.sensitivity.overrides import find_operator_kinds
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


class Corrected(nn.Module):
    """A `Tagger` with the arithmetic that NNCF adds: unpacked weights, and another bias."""

    def __init__(self, tagger):
        super().__init__()
        self.words, self.head = tagger.words, tagger.head
        self.body_bias = nn.Buffer(tagger.body.bias + 0.1)
        self.body_scale = nn.Buffer(tagger.body.weight.abs().max() / 127)
        rounded = (tagger.body.weight / self.body_scale).round()
        self.body_weight = nn.Buffer(rounded.to(torch.int8))

    def forward(self, x):
        weight = self.body_weight * self.body_scale
        body = nn.functional.linear(self.words(x), weight, self.body_bias)
        return self.head(torch.relu(body))


@pytest.mark.slow
def test_changed_constants_are_switched():
    torch.manual_seed(0)
    tagger = Tagger().eval().requires_grad_(False)
    program = export(tagger, CALL.args)
    quantized = export(Corrected(tagger), CALL.args)
    places = {node.name: place for place, node in enumerate(program.graph.nodes)}
    names = [node.name for node in quantized.graph.nodes if node.name in places]
    origins = {name: places[name] for name in names}
    switches = WeightSwitches(program, quantized, [origins])
    assert switches.operators == {"linear": "body"}
    assert switches.saved["linear"] == 32 * 32 * 3 - 4  # a scale
    switches.switch(frozenset(["linear"]))
    torch.testing.assert_close(switches.run(CALL)[0], quantized.module()(*CALL.args))
    switches.switch(frozenset())
    torch.testing.assert_close(switches.run(CALL)[0], program.module()(*CALL.args))


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("nncf"), reason="needs pip install 'pte-pipeline[openvino]'")
@pytest.mark.parametrize("options", [{}, {"mode": "int8wo_sym"}, {"smooth_quant": True}])
def test_openvino(options):
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 8, 3),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 4),
    ]
    inputs = InputSet((torch.randn(1, 3, 8, 8),))
    program = export(nn.Sequential(*layers).eval().requires_grad_(False), inputs.args)
    spec = QUANTIZERS["openvino"].options(quantizer="openvino", **options)
    whole = quantize(program, spec, [inputs] if spec.calibrates else [])
    kinds = find_operator_kinds(spec)
    switches = WeightSwitches(program, whole, find_origins(whole, program), kinds=kinds)
    assert {"conv2d": "0", "linear": "3"}.items() <= switches.operators.items()
    assert "flatten" not in switches.operators  # it passes a value on to the linear layer
    assert switches.saved["linear"] > 2 * 32 * 4
    switches.switch(frozenset(switches.operators))
    torch.testing.assert_close(switches.run(inputs)[0], whole.module()(*inputs.args))
    switches.switch(frozenset())
    actual, expected = switches.run(inputs)[0], program.module()(*inputs.args)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
