"""Weights that quantized programs dequantize are computed once for all calls."""

import pytest
import torch
from torch.export import export

from pipeline.features.rounding.source import RoundedSource
from pipeline.features.source_calls import dequantized_weights
from pipeline.features.source_calls.dequantized_weights import DequantizedWeights
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet

DEQUANTIZE = torch.ops.quantized_decomposed.dequantize_per_tensor.default


class Quantized(torch.nn.Module):
    """A linear layer with 8-bit weights, and 8-bit state that each call changes."""

    def __init__(self, scale=0.01, first=-60):
        super().__init__()
        weights = torch.arange(first, first + 120, dtype=torch.int8).reshape(10, 12)
        self.scale = scale
        self.register_buffer("weight", weights)
        self.register_buffer("kept", torch.ones(10, dtype=torch.int8))

    def forward(self, x):
        weight = DEQUANTIZE(self.weight, self.scale, 3, -128, 127, torch.int8)
        kept = DEQUANTIZE(self.kept, 0.5, 0, -128, 127, torch.int8)
        self.kept.add_(1)
        return torch.nn.functional.linear(x, weight) + kept


class Changing(torch.nn.Module):
    """Weights that a call changes after they have become floats."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.arange(12, dtype=torch.int8))

    def forward(self, x):
        weight = DEQUANTIZE(self.weight, 0.5, 0, -128, 127, torch.int8)
        weight.view(3, 4)[0].add_(1)
        return x * weight


@pytest.fixture
def calls(monkeypatch):
    """Record the operators that ran in nodes that dequantize weights, as lanes call them."""
    ran = []
    hold = DequantizedWeights._hold

    def count(self, node, weight):
        ran.append(node.name)
        hold(self, node, weight)

    monkeypatch.setattr(DequantizedWeights, "_hold", count)
    return ran


def make_program(module, size):
    return export(module.eval(), (torch.ones(size),))


def test_outputs_are_the_same_and_weights_are_made_once(calls):
    program = make_program(Quantized(), (2, 12))
    inputs = InputSet((torch.linspace(-1, 1, 24).reshape(2, 12),), {}, "an example")
    plain, served = Source(program), Source(program)
    rounded, served_rounded = RoundedSource(program), RoundedSource(program)
    weights = DequantizedWeights()
    weights.serve(served)
    weights.serve(served_rounded)
    for step in range(3):
        assert torch.equal(served.run(inputs)[0], plain.run(inputs)[0])
        for source in (rounded, served_rounded):
            source.reseed(step)
        (expected,), (actual,) = rounded.run(inputs), served_rounded.run(inputs)
        assert torch.equal(actual, expected)
        assert not torch.equal(actual, plain.run(inputs)[0])
        plain.reset()
        for _ in range(step + 1):
            plain.run(inputs)
    assert calls == ["dequantize_per_tensor"]  # the weight's; the state isn't one


def test_weights_that_a_call_changes_are_made_again(calls):
    program = make_program(Changing(), 12)
    inputs = InputSet((torch.ones(12),), {}, "an example")
    plain, served = Source(program), Source(program)
    DequantizedWeights().serve(served)
    for _ in range(3):
        assert torch.equal(served.run(inputs)[0], plain.run(inputs)[0])
    assert len(calls) == 3


def test_no_more_is_held_than_there_is_room_for(calls, monkeypatch):
    monkeypatch.setattr(dequantized_weights, "MOST_BYTES", 4 * 120 - 1)
    program = make_program(Quantized(), (2, 12))
    inputs = InputSet((torch.ones(2, 12),), {}, "an example")
    served = Source(program)
    DequantizedWeights().serve(served)
    for _ in range(2):
        served.run(inputs)
    assert len(calls) == 2


def test_weights_of_the_method_that_runs_come_first(calls, monkeypatch):
    monkeypatch.setattr(dequantized_weights, "MOST_BYTES", 4 * 120)
    weights = DequantizedWeights()
    inputs = InputSet((torch.ones(2, 12),), {}, "an example")
    sources = [Source(make_program(Quantized(first=n), (2, 12))) for n in (-60, -59)]
    for source in sources:
        weights.serve(source)
    for place in (0, 0, 1, 1, 0):
        sources[place].run(inputs)
    assert len(calls) == 3


def test_methods_share_weights_of_the_same_content(calls):
    """Neither other integers nor another scale are the same content."""
    weights = DequantizedWeights()
    inputs = InputSet((torch.ones(2, 12),), {}, "an example")
    modules = [Quantized(), Quantized(), Quantized(first=-59), Quantized(scale=0.02)]
    for module in modules:
        program = make_program(module, (2, 12))
        plain, served = Source(program), Source(program)
        weights.serve(served)
        for _ in range(2):
            assert torch.equal(served.run(inputs)[0], plain.run(inputs)[0])
    assert len(calls) == 3


def test_a_shared_weight_that_one_method_changes_is_made_again_for_all(calls):
    weights = DequantizedWeights()
    inputs = InputSet((torch.ones(12),), {}, "an example")
    programs = [make_program(Changing(), 12) for _ in range(2)]
    plain = Source(programs[0]).run(inputs)[0]
    sources = [Source(program) for program in programs]
    for source in sources:
        weights.serve(source)
    for place in (0, 1, 0):
        assert torch.equal(sources[place].run(inputs)[0], plain)
    assert len(calls) == 3


def test_weights_of_torchao_are_made_once(calls):
    pytest.importorskip("torchao.quantization.quant_primitives")
    dequantize = torch.ops.torchao.dequantize_affine.default

    class Grouped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.arange(-60, 60, dtype=torch.int8).reshape(10, 12))
            self.register_buffer("scale", torch.linspace(0.1, 1, 30).reshape(10, 3))

        def forward(self, x):
            weight = dequantize(self.weight, [1, 4], self.scale, None, torch.int8, -128, 127)
            return torch.nn.functional.linear(x, weight)

    program = make_program(Grouped(), (2, 12))
    inputs = InputSet((torch.ones(2, 12),), {}, "an example")
    plain, served = Source(program), Source(program)
    DequantizedWeights().serve(served)
    for _ in range(2):
        assert torch.equal(served.run(inputs)[0], plain.run(inputs)[0])
    assert calls == ["dequantize_affine"]


class Branching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.arange(12, dtype=torch.int8))

    def forward(self, x):
        weight = DEQUANTIZE(self.weight, 0.5, 0, -128, 127, torch.int8)
        return torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a * 3, (x * weight,))


def test_branches_run_with_their_hooks():
    x = torch.ones(12)
    source = Source(export(Branching(), (x,)))
    ran = []
    for name in ("true_graph_0", "false_graph_0"):
        body = source.module.get_submodule(name)
        body.register_forward_pre_hook(lambda body, inputs, name=name: ran.append(name))
    expected = [Source(source.program).run(InputSet((sign * x,), {}, "")) for sign in (1, -1)]
    DequantizedWeights().serve(source)
    ran.clear()
    actual = [source.run(InputSet((sign * x,), {}, "")) for sign in (1, -1)]
    assert ran == ["true_graph_0", "false_graph_0"]
    for (value,), (wanted,) in zip(actual, expected, strict=True):
        assert torch.equal(value, wanted)
