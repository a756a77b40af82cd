"""A branch that no call takes was not compared, and is named."""

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from pipeline.config.validation import ValidateConfig
from pipeline.features.unjudged.branches import RunBodies
from pipeline.features.unjudged.judge import MovementJudge
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.validate.budget import Budget
from pipeline.validate.package import validate_package
from tests.devices.test_bindings import lowered, write

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
LOW, HIGH = InputSet((X,), {}, "low"), InputSet((X + 1e6,), {}, "high")


class Clipped(nn.Module):
    """Halves its input where the sum is beyond what any generated input reaches."""

    def forward(self, x):
        return torch.cond(x.sum() > 1e6, lambda a: a * 0.5, lambda a: a * 1.0, (x,)), x + 1


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls.add_(1)
        return torch.cond(self.calls.sum() > 3, lambda a: a * 0.5, lambda a: a * 1.0, (x,))


class Frozen(Counted):
    def forward(self, x):
        return torch.cond(self.calls.sum() > 3, lambda a: a * 0.5, lambda a: a * 1.0, (x,))


class Nested(nn.Module):
    def forward(self, x):
        def inner(a):
            return torch.cond(a.mean() > 1e6, lambda b: b * 3.0, lambda b: b * 4.0, (a,))

        return torch.cond(x.sum() > 0, inner, lambda a: a * 2.0, (x,))


class Sized(nn.Module):
    def forward(self, x):
        return torch.cond(x.shape[0] > 6, lambda a: a * 0.5, lambda a: a * 1.0, (x,))


def validated(module, *examples, dynamic=None, **settings):
    program = export(module, (X,), dynamic_shapes=dynamic)
    pte = write("branches.pte", lowered({"run": program}).buffer)
    config = ValidateConfig(**{"latency": {"seconds": 0}} | settings)
    return validate_package(pte, (), {"run": program}, {"run": examples}, config, {}).methods[0]


def test_a_branch_that_no_call_takes_is_not_judged():
    method = validated(Clipped(), LOW)
    assert method.ok and method.verdict == "not judged"
    first, second = method.movement
    assert not first["judged"] and second["judged"]
    assert method.verdict_reason.startswith("no call runs the true branch of cond")
    assert "whose condition is aten.gt.Scalar; add an example that does" in method.verdict_reason


def test_an_example_that_takes_the_branch_judges_it():
    assert validated(Clipped(), LOW, HIGH).verdict == "passed"


def test_state_that_takes_the_branch_judges_it():
    assert validated(Counted(), LOW, steps=2).verdict == "not judged"
    assert validated(Counted(), LOW, steps=4).verdict == "passed"


def test_a_branch_that_nothing_can_take_leaves_a_method_judged():
    assert validated(Frozen(), LOW).verdict == "passed"


def test_only_the_outermost_branch_is_named():
    method = validated(Nested(), InputSet((X.abs(),), {}, "up"), InputSet((-X.abs(),), {}, "down"))
    assert method.verdict_reason.count("branch of cond") == 1
    down = validated(Nested(), InputSet((-X.abs(),), {}, "down"), inputs=0)
    assert down.verdict_reason.count("branch of cond") == 1


def test_sizes_take_branches():
    sizes = ({0: Dim("rows", min=2, max=16)},)
    assert validated(Sized(), LOW, dynamic=sizes, inputs=0).verdict == "not judged"
    assert validated(Sized(), LOW, dynamic=sizes, inputs=2).verdict == "passed"


class Silent(Counted):
    def forward(self, x):
        y = torch.cond(x.sum() > 1e6, lambda a: a * 0.5, lambda a: a * 1.0, (x,))
        self.calls.copy_(y.sum())


def test_a_branch_of_a_method_that_returns_nothing_counts():
    program = export(Silent(), (X,))
    facts = ((), ("calls",), [LOW], (), False, True, Budget())
    for calls, unjudged in (([LOW], 1), ([LOW, HIGH], 0)):
        judge = MovementJudge(program)
        for inputs in calls:
            Source(program).run(inputs)
        records = judge.judge(*facts)
        assert len(records) == unjudged
        assert all("the true branch of cond" in record["reason"] for record in records)


@pytest.mark.parametrize("released", [False, True])
def test_hooks_are_removed(released):
    program = export(Clipped(), (X,))
    bodies = RunBodies(program)
    if released:
        bodies.release()
    source = Source(program)
    source.run(LOW)
    source.run(HIGH)
    assert bool(bodies.explain(2, ())) is released
