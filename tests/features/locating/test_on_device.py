"""A device's divergence from this machine is traced to the instruction that diverges by itself.

The device is the interpreter, whose only difference is one kernel with another result;
`tests/features/native/test_locating.py` uses a real runner.
"""

from functools import cache
from types import SimpleNamespace

import pytest
import torch
from executorch.exir import schema
from torch import nn

from pipeline.config.validation import Limits
from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.package_data import read_package
from pipeline.features.locating.bisect_delegate import find_fused_operator
from pipeline.features.locating.case import load_methods
from pipeline.features.locating.interpreter.execute import (
    read_results,
    read_value,
    result_indices,
    steps,
    store_value,
)
from pipeline.features.locating.on_device import locate_divergence
from pipeline.features.locating.walk import Tolerance
from pipeline.validate.budget import Budget
from pipeline.validate.metrics import compare
from tests.devices.test_bindings import exported
from tests.features.locating.test_locate import Cache, V, X
from tests.support.located import build


class Normed(nn.Module):
    """`first` and `second` have the same operators; a norm's kernel returns three values."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh())
        self.second = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh())

    def forward(self, x):
        return self.second(self.first(x))


@cache
def built():
    return build({"run": exported(Normed(), X), "count": exported(Cache(), V)})


class OddDevice:
    """Runs calls, and replaces the values of one operator by `change(call number, value)`."""

    device = "odd"

    def __init__(self, calls, operator, change=lambda call, value: value + 1, records=True):
        self.calls = calls
        self.method = calls[-1][0]
        self.operator = operator
        self.change = change
        self.records = records

    def record(self, budget):
        budget.check()
        methods = load_methods(read_package(FILES()), {name for name, _ in self.calls})
        executions = []
        for number, (name, inputs) in enumerate(self.calls):
            method = methods[name]
            executions.append([])
            for index in steps(method, inputs):
                call = method.plan.chains[0].instructions[index].instr_args
                if not isinstance(call, schema.KernelCall):
                    continue
                if method.plan.operators[call.op_index].name == self.operator:
                    place = result_indices(method, index)[0]
                    value = self.change(number, read_value(method, place))
                    store_value(method.values, place, value)
                values = read_results(method, index) if self.records else []
                executions[-1].append(SimpleNamespace(index=index, values=values))
        return [read_value(method, index) for index in method.plan.outputs], executions

    def run_package(self, files, method, inputs):
        raise AssertionError("there is no delegate")


def FILES():  # noqa: N802 - as a constant, but made when first needed
    return PackageFiles("odd.pte", built().pte)


def locate(device, budget=None):
    return locate_divergence(built().evidence(), device, budget or Budget())


@pytest.mark.parametrize(
    ("operator", "label"),
    [("aten::tanh", "aten.tanh.default"), ("aten::native_layer_norm", "aten.layer_norm.default")],
)
def test_the_first_of_several_instructions_is_named(operator, label):
    [culprit], notes = locate(OddDevice([("run", [X])], operator))
    assert not notes
    assert (culprit["operator"], culprit["kind"]) == (label, "operator")
    assert culprit["module"].startswith("first.")
    assert culprit["kernel"].startswith(operator)
    assert f"on odd, first divergence: {label} in first." in culprit["what"]
    assert ": error 1," in culprit["what"] and "; 1 more value diverges too" in culprit["what"]


def test_what_the_first_one_alone_does_to_the_output_is_its_share():
    def change(call, value, seen=[]):  # noqa: B006 - of all calls
        seen.append(value)
        return value + 1 if len(seen) == 1 else value

    [culprit], _ = locate(OddDevice([("run", [X])], "aten::tanh", change))
    assert "; 100 % of the output's error comes from it" in culprit["what"]
    assert "more value" not in culprit["what"]


def test_state_that_diverges_in_an_earlier_call():
    def change(call, value):
        return value + 1 if call == 0 else value

    calls = [("count", [V])] * 3
    [culprit], _ = locate(OddDevice(calls, "aten::add", change))
    assert (
        culprit["operator"].startswith("aten.add")
        and "in call 1 of the sequence" in (culprit["what"])
    )


@pytest.mark.parametrize(
    ("device", "note"),
    [
        (OddDevice([("run", [X])], "aten::tanh", records=False), "whose values were reco"),
        (
            OddDevice([("run", [X])], "aten::absent"),
            "every instruction whose values were recorded returns the same values as here",
        ),
    ],
)
def test_what_is_not_found_is_said(device, note):
    culprits, [line] = locate(device)
    assert not culprits and line.startswith("run: on odd: ") and note in line


def test_values_that_were_not_recorded_are_told():
    device = OddDevice([("run", [X])], "aten::tanh")
    outputs, [executions] = device.record(Budget())
    executions[0].values = [None]
    device.record = lambda budget: (outputs, [executions])
    [culprit], [line] = locate(device)
    assert culprit["operator"] == "aten.tanh.default"
    assert line == "run: on odd: no room was left to record 1 value"


def test_each_reason_not_to_find_it_is_a_line(monkeypatch):
    device = OddDevice([("run", [X])], "aten::tanh")
    _, [line] = locate(device, Budget(1e-9))
    assert line == (
        "run: on odd: validate.budget was exhausted before the diverging operator was found"
    )
    outputs, [executions] = device.record(Budget())
    monkeypatch.setattr(device, "record", lambda budget: None)
    assert locate(device)[1] == ["run: on odd: called again, it returns the expected values"]
    monkeypatch.setattr(device, "record", lambda budget: (outputs, [executions[1:]]))
    assert "it did not execute instruction 0" in locate(device)[1][0]

    def refuse(budget):
        raise DeviceError("odd: ", "the board is gone")

    monkeypatch.setattr(device, "record", refuse)
    [line] = locate(device)[1]
    assert line.startswith("run: on odd: the diverging operator could not be found: DeviceError: ")


def test_one_step_of_a_quantized_value_is_rounding_between_processors():
    expected = torch.tensor([3, 4], dtype=torch.int8)
    limits = Limits(atol=0.0, rtol=0.0)
    between = Tolerance(limits, 1.0, rounds_otherwise=True)
    for steps_away, diverges in ((1, False), (2, True)):
        actual = expected + torch.tensor([steps_away, 0], dtype=torch.int8)
        assert between.diverges(compare(actual, expected), actual, expected) is diverges
        assert Tolerance(limits, 1.0).diverges(compare(actual, expected), actual, expected)


def test_a_quantized_value_is_traced_to_what_computes_it():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    quantized = torch.ops.quantized_decomposed
    scale = (0.1, 0, -128, 127, torch.int8)
    given = graph.call_function(quantized.dequantize_per_tensor.default, (x, *scale))
    product = graph.call_function(torch.ops.aten.mm.default, (given, given))
    rectified = graph.call_function(torch.ops.aten.relu.default, (product,))
    end = graph.call_function(quantized.quantize_per_tensor.default, (rectified, *scale))
    assert find_fused_operator(end) is product
    assert find_fused_operator(rectified) is rectified
    begin = graph.call_function(quantized.quantize_per_tensor.default, (x, *scale))
    assert find_fused_operator(begin) is begin
