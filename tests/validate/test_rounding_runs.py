"""The program is run with rounded values only where this can change a verdict."""

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.config.validation import ValidateConfig
from pipeline.features.rounding.source import RoundedSource
from pipeline.program.inputs import InputSet
from pipeline.validate.default_limits import LEAST_ATOL, RUNS
from pipeline.validate.package import validate_package
from tests.devices.test_bindings import lowered, write


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x).tanh()


class Counter(Layers):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x):
        self.steps.add_(1)
        return super().forward(x) + self.steps


X = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
MOVED = [InputSet((X * factor,), {}, f"example {factor}") for factor in (1, 2, 3)]


@pytest.fixture
def rounded(monkeypatch):
    """Return a list to which each run with rounded values is added."""
    runs = []
    run = RoundedSource.run
    monkeypatch.setattr(RoundedSource, "run", lambda *args: runs.append(args) or run(*args))
    return runs


def validated(module, examples, damaged=None, **arguments):
    program = export(module.eval(), (X,))
    built = program if damaged is None else export(damaged.eval(), (X,))
    pte = write("rounded.pte", lowered({"run": built}).buffer)
    config = ValidateConfig(latency={"seconds": 0}, inputs=0)
    examples_of = {"run": examples}
    validation = validate_package(pte, (), {"run": program}, examples_of, config, {}, **arguments)
    return validation.methods[0]


def test_of_right_calls_only_the_first_that_moves_an_output_is_rounded(rounded):
    method = validated(Layers(), MOVED)
    assert method.verdict == "passed" and len(method.runs) == 3
    assert len(rounded) == RUNS
    assert all(run.limits[0].atol == pytest.approx(LEAST_ATOL, rel=0.5) for run in method.runs)


def test_calls_on_the_same_inputs_are_not_rounded(rounded):
    assert validated(Layers(), MOVED[:1] * 3).verdict == "passed"
    assert not rounded


def test_a_call_beyond_the_closest_limits_is_rounded(rounded):
    wrong = Layers()
    with torch.no_grad():
        wrong.linear.bias += 1e-3
    method = validated(Layers(), MOVED[:1], wrong)
    assert method.verdict == "failed"
    assert len(rounded) > RUNS  # again, since two runs don't explain the error


def test_with_state_the_calls_before_one_that_is_rounded_are_rounded_too(rounded):
    """Rounded programs change their own buffers."""

    class Late(Counter):
        def forward(self, x):
            return super().forward(x) + 1e-3 * (self.steps > 2)

    assert validated(Counter(), MOVED).verdict == "passed"
    assert len(rounded) == 2 * RUNS  # the second call moves the output, and needs the first
    rounded.clear()
    assert validated(Counter(), MOVED, Late()).verdict == "failed"
    first_lane = [inputs for source, inputs, *_ in rounded if source is rounded[0][0]]
    assert first_lane[:3] == MOVED


class Cancelling(nn.Module):
    """Rounding moves its output by up to 1e-3, whatever the output."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return (x * self.weight + 1e4) - 1e4


def test_an_output_that_moves_no_further_than_by_rounding_is_not_judged(rounded):
    """A package that ignored its inputs would pass, however exact this one is."""
    sets = [InputSet((X * 0.1 * factor,), {}, f"{factor}") for factor in (1, 1.004, 1.008)]
    method = validated(Cancelling(), sets)
    assert method.verdict == "not judged"
    assert rounded and "within its limits" in method.verdict_reason
    method = validated(Cancelling(), MOVED)
    assert method.verdict == "passed"
    first, second, third = (run.limits[0].atol for run in method.runs)
    assert second > 10 * third > 10 * first / 2


def test_a_call_that_the_first_run_settles_is_not_rounded_again(rounded):
    class Shifted(Cancelling):
        def forward(self, x):
            return super().forward(x) + 4e-4

    method = validated(Cancelling(), MOVED[:1], Shifted())
    assert method.verdict == "passed"
    assert len(rounded) == 1
    assert method.runs[0].outputs[0].max_abs > LEAST_ATOL


@pytest.mark.parametrize("user", ["keep", "watchers"])
def test_limits_for_other_devices_are_as_wide_as_rounding_makes_them(user, rounded):
    takers = {"keep": lambda *call: None, "watchers": [lambda *call: None]}
    method = validated(Cancelling(), MOVED[:1], **{user: takers[user]})
    assert len(rounded) == RUNS
    assert method.runs[0].limits[0].atol > 5 * LEAST_ATOL


@pytest.mark.parametrize("frozen", [False, True])
def test_a_package_that_ignores_its_inputs_fails(frozen):
    class Frozen(Layers):
        def forward(self, x):
            return Layers.forward(self, X) + x * 0

    method = validated(Layers(), MOVED, Frozen() if frozen else None)
    assert method.verdict == ("failed" if frozen else "passed")
