"""A comparison that can't fail gives no verdict: its outputs carry no information."""

import math

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.config.validation import Limits, ValidateConfig
from pipeline.features.unjudged.movement import OutputMovement
from pipeline.program.inputs import InputSet
from pipeline.validate.node_values import NodeValues
from pipeline.validate.package import validate_package
from tests.devices.test_bindings import lowered, write

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
EXAMPLES = (InputSet((X,), {}, "example 0"),)


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.function(self, x)


def validated(function, examples=EXAMPLES, **settings):
    program = export(Calls(function), (X,))
    pte = write("moving.pte", lowered({"run": program}).buffer)
    config = ValidateConfig(**{"latency": {"seconds": 0}} | settings)
    return validate_package(pte, (), {"run": program}, {"run": examples}, config, {}).methods[0]


STILL = {
    "nan": (lambda m, x: torch.log(-x.abs() - 1), "NaN in every value of 4 calls", "aten.log"),
    "inf": (lambda m, x: x * 0 + math.inf, "the same in all 4 calls", "aten.mul"),
    "no constant": (lambda m, x: x * 0 + 1, "the same in all 4 calls", "aten.mul"),
    "constant": (lambda m, x: torch.ones(3), "no output depends on any input", ""),
    "weight": (lambda m, x: (m.weight * 2, 5), "no output depends on any input", ""),
    "argmax": (lambda m, x: torch.relu(x - 100).argmax(1), "the same in all", "aten.relu"),
    "mask": (lambda m, x: x > 100, "the same in all", "aten.gt"),
    "empty": (lambda m, x: (x * 2, x[:0]), "output[1] has no elements", "aten.slice"),
    "saturated": (lambda m, x: torch.sigmoid(x + 60), "the same in all", "aten.sigmoid"),
    "within limits": (lambda m, x: x * 1e-6 + 1, "moves by at most", "aten.add"),
    "branch": (
        lambda m, x: torch.cond(x.sum() > -1e9, lambda a: a * 0.0, lambda a: a * 1.0, (x,)),
        "the same in all",
        "aten.gt",
    ),
}


@pytest.mark.parametrize(("function", "what", "where"), STILL.values(), ids=STILL)
def test_an_output_without_information_is_not_judged(function, what, where):
    method = validated(function)
    assert method.verdict == "not judged" and method.ok
    assert what in method.verdict_reason
    assert "`validate: {allow: [not-judged]}` accepts it" in method.verdict_reason
    assert (f"it stops depending on them at {where}" in method.verdict_reason) == bool(where)


def test_outputs_of_one_reason_share_a_sentence():
    method = validated(lambda m, x: (x + math.nan, x.abs() + math.nan))
    assert method.verdict_reason.count("NaN in every value") == 1
    assert method.verdict_reason.startswith("each of output[0], output[1] is NaN in every value")


MOVING = {
    "softmax": lambda m, x: x.softmax(-1),
    "the input itself": lambda m, x: x,
    "one element": lambda m, x: torch.cat([torch.ones(63), x[0, :1]]),
    "equal elements": lambda m, x: x.mean().expand(8) * 1.0,
    "signs": lambda m, x: x > 0,
    "some nan": lambda m, x: torch.log(x),
    "infinities": lambda m, x: torch.where(x > 0, math.inf, -math.inf),
    "constants beside": lambda m, x: (x * 2, m.weight * 2, torch.zeros(3), None),
}


@pytest.mark.parametrize("function", MOVING.values(), ids=MOVING)
def test_an_output_that_moves_is_judged(function):
    method = validated(function)
    assert method.verdict == "passed", method.verdict_reason
    assert all(record["judged"] for record in method.movement)


def test_the_record_says_how_much_each_output_moves():
    function = lambda m, x: (torch.cat([torch.zeros(7), x[0, :1]]), m.weight + 1)  # noqa: E731
    moving, fixed = validated(function).to_json()["movement"]
    assert moving["output"] == "output[0]" and moving["calls"] == 4
    assert moving["share"] == 1 / 8 and 0 < moving["typical"] < moving["largest"]
    assert fixed["fixed"] == "nothing" and fixed["largest"] == 0 and fixed["judged"]


def test_where_all_calls_were_on_one_input_the_source_tells_whether_it_moves():
    method = validated(lambda m, x: x * 2, inputs=0)
    assert method.verdict == "passed" and method.movement[0]["redrawn"]
    method = validated(lambda m, x: x > 100, inputs=0)
    assert "in the one call, and in 6 of its source on other inputs" in method.verdict_reason
    assert "aten.gt" in method.verdict_reason


def test_outputs_share_the_calls_of_the_source_on_other_inputs(monkeypatch):
    calls = []
    call = NodeValues.call
    monkeypatch.setattr(NodeValues, "call", lambda *args: calls.append(args) or call(*args))
    method = validated(lambda m, x: (x * 2, x * 3, x > 100), inputs=0)
    assert [record["judged"] for record in method.movement] == [True, True, False]
    # On the call's own inputs and on six others, then on two to find the operator.
    assert len(calls) == 9


def test_integers_that_are_drawn_again_are_no_other_inputs():
    """The examples have a single integer, so half of the redrawn inputs are the examples."""
    tokens = torch.ones(1, 4, dtype=torch.int64)
    program = export(Calls(lambda m, x: x > 100), (tokens,))
    pte = write("moving.pte", lowered({"run": program}).buffer)
    examples = {"run": (InputSet((tokens,), {}, "example 0"),)}
    config = ValidateConfig(latency={"seconds": 0}, inputs=0)
    (method,) = validate_package(pte, (), {"run": program}, examples, config, {}).methods
    assert "and in 3 of its source on other inputs" in method.verdict_reason


def test_large_inputs_alone_judge_nothing():
    program = export(Calls(lambda m, x: x > 100), (X,))
    pte = write("moving.pte", lowered({"run": program}).buffer)
    config, examples = ValidateConfig(latency={"seconds": 0}), {"run": EXAMPLES}
    (method,) = validate_package(
        pte, (), {"run": program}, examples, config, {}, cases={"run": ["large"]}
    ).methods
    assert any(run.case == "large" for run in method.runs)
    assert method.verdict == "not judged"
    assert "the same in all 4 calls" in method.verdict_reason
    assert "on large inputs it moves" in method.verdict_reason
    assert "whatever the inputs" not in method.verdict_reason


def test_limits_that_are_wider_than_an_output_moves_judge_nothing():
    assert validated(lambda m, x: x * 1e-3, atol=1e-5, rtol=0).verdict == "passed"
    assert validated(lambda m, x: x * 1e-3, atol=1.0, rtol=0).verdict == "not judged"


def test_nan_on_the_examples_alone_is_no_verdict_and_is_counted():
    method = validated(torch_log, (InputSet((-X.abs(),), {}, "example 0"),))
    assert "NaN in every value on the examples" in method.verdict_reason
    method = validated(torch_log)
    (record,) = method.movement
    assert method.verdict == "passed"
    assert (record["nonfinite"], record["example_values"]) == (int((X <= 0).sum()), 32)


def torch_log(module, x):
    return torch.log(x)


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4, 8))

    def forward(self, x):
        self.total.add_(x)


def test_a_method_that_returns_nothing_is_not_judged():
    program = export(Writing(), (X,))
    pte = write("writing.pte", lowered({"run": program}).buffer)
    config = ValidateConfig(latency={"seconds": 0})
    (method,) = validate_package(pte, (), {"run": program}, {"run": EXAMPLES}, config, {}).methods
    assert method.verdict == "not judged"
    assert "its outputs don't show its changes to state" in method.verdict_reason


class Shifting(nn.Module):
    """Returns what it was called with four calls ago."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(5, 8))

    def forward(self, x):
        self.rows.copy_(torch.cat([self.rows[1:], x[:1]]))
        return self.rows[0].clone()


@pytest.mark.parametrize(("steps", "verdict"), [(4, "not judged"), (6, "passed")])
def test_an_output_that_moves_after_many_calls_needs_more_steps(steps, verdict):
    program = export(Shifting(), (X,))
    pte = write("shifting.pte", lowered({"run": program}).buffer)
    config = ValidateConfig(latency={"seconds": 0}, steps=steps)
    (method,) = validate_package(pte, (), {"run": program}, {"run": EXAMPLES}, config, {}).methods
    assert method.verdict == verdict
    assert ("raise `validate.steps` if it changes" in method.verdict_reason) == (steps == 4)


# Without packages


def sets(*values):
    return [InputSet((torch.tensor(value),), {}, str(value)) for value in values]


LIMITS = Limits(atol=0.1, rtol=0.0)


def moved(*values, inputs=None):
    movement = OutputMovement()
    for value, given in zip(values, inputs or sets(*range(len(values))), strict=True):
        movement.add(value, LIMITS, given)
    return movement


def test_values_of_other_sizes_are_not_compared():
    nan = math.nan
    movement = moved(torch.tensor([nan]), torch.tensor([nan, nan]), torch.tensor([nan]))
    assert not movement.noticed and movement.nans == movement.values == 4
    assert movement.other_inputs is not None


def test_the_same_inputs_again_are_no_other_inputs():
    one = torch.ones(2)
    assert moved(one, one, inputs=sets(1, 1)).other_inputs is None
    assert moved(one, one, inputs=sets(1, 2)).other_inputs is not None


def test_figures_stay_when_values_are_let_go():
    movement = moved(torch.zeros(2), torch.tensor([0.0, 0.5]))
    movement.release()
    record = movement.to_json("output")
    assert not movement.firsts and record["largest"] == 0.5 and record["share"] == 0.5
