"""A nondeterministic source can't be the measure of a package; the message names the operators."""

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.config.validation import ValidateConfig
from pipeline.features.randomness.judge import judge_random
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.program.random_operators import find_random_operators
from pipeline.validate.determinism import REPEATS, describe_nondeterminism
from pipeline.validate.package import validate_package
from tests.devices.test_bindings import lowered, write

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def program(module):
    torch.manual_seed(0)
    return export(module, (X,))


def described(module):
    return describe_nondeterminism(Source(program(module)), InputSet((X,)))


class Half(nn.Module):
    def forward(self, x):
        made = torch.empty(8, 8)
        made[:4] = x
        return made


def dropping(probability=0.5):
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(probability))


RANDOM = {
    "dropout": (dropping(), "aten.dropout in training mode", ".eval()"),
    "a rare draw": (
        Calls(lambda x: x + (torch.rand(4, 8) < 0.02)),
        "aten.rand",
        "random: true",
    ),
    "a rarely dropped branch": (
        Calls(lambda x: x + (torch.rand(()) < 0.9) * x.sin()),
        "aten.rand",
        "random: true",
    ),
    "a rare bernoulli": (
        Calls(lambda x: x * torch.bernoulli(torch.full((1,), 0.99))),
        "aten.bernoulli",
        "random: true",
    ),
    "a rare integer": (
        Calls(lambda x: torch.where(torch.randint(0, 200, (1,)) == 199, -x, x)),
        "aten.randint",
        "random: true",
    ),
    "a rare choice": (
        Calls(lambda x: x + (torch.multinomial(torch.tensor([0.02, 0.98]), 1) == 0)),
        "aten.multinomial",
        "random: true",
    ),
    "a rare dropout": (dropping(1e-4), "aten.dropout in training mode", ".eval()"),
    "a rare dropout in place": (
        nn.Sequential(nn.Linear(8, 8), nn.Dropout(1e-4, inplace=True)),
        "aten.dropout_ in training mode",
        ".eval()",
    ),
    "a rare draw in a branch": (
        Calls(
            lambda x: torch.cond(
                x.sum() > -1e9, lambda y: y + (torch.rand(()) > 0.9), lambda y: y * 1.0, (x,)
            )
        ),
        "aten.rand",
        "random: true",
    ),
    "bernoulli": (Calls(lambda x: torch.bernoulli(x.sigmoid())), "aten.bernoulli", "random: true"),
    "multinomial": (
        Calls(lambda x: torch.multinomial(x.softmax(-1), 1)),
        "aten.multinomial",
        "random: true",
    ),
    "a branch": (
        Calls(
            lambda x: torch.cond(
                x.sum() > -1e9, lambda y: y + torch.rand_like(y), lambda y: y * 1.0, (x,)
            )
        ),
        "aten.rand_like",
        "random: true",
    ),
    "attention": (
        Calls(lambda x: nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)),
        "aten.scaled_dot_product_attention",
        ".eval()",
    ),
    "memory": (
        Calls(lambda x: x + torch.empty(4, 8)),
        "aten.empty",
        "torch.zeros instead of torch.empty",
    ),
    "half of it": (Half(), "aten.empty", "torch.zeros instead of torch.empty"),
    "a part by index": (
        Calls(lambda x: torch.empty(8, 8).index_put((torch.arange(4),), x)),
        "aten.empty",
        "torch.zeros instead of torch.empty",
    ),
}


@pytest.mark.parametrize(("module", "operator", "remedy"), RANDOM.values(), ids=RANDOM)
def test_a_random_source_is_named_with_what_to_do(module, operator, remedy):
    found = described(module)
    assert operator in found and remedy in found, found
    assert "on the same inputs" in found


def test_batch_norm_in_training_mode_changes_the_model_as_it_runs():
    found = described(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    assert "aten.batch_norm in training mode" in found and ".eval()" in found


UNWRITTEN = {
    "times zero": (Calls(lambda x: x + torch.empty(4, 8) * 0), "aten.empty"),
    "a larger tensor": (Calls(lambda x: x.clone().resize_(8, 8)), "aten.resize_"),
    "a custom operator": (Calls(lambda x: torch.ops.unwritten_tests.half(x)), "half"),
}


@torch.library.custom_op("unwritten_tests::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    made = torch.empty(8, 8)
    made[:4] = x
    return made


half.register_fake(lambda x: x.new_empty(8, 8))


@torch.library.custom_op("unwritten_tests::whole", mutates_args=())
def whole(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(4, 8).copy_(x * 2)


whole.register_fake(torch.empty_like)


@pytest.mark.parametrize(("module", "operator"), UNWRITTEN.values(), ids=UNWRITTEN)
def test_memory_that_nothing_wrote_is_seen_wherever_it_is_allocated(module, operator):
    found = described(module)
    assert "reads uninitialized memory" in found and operator in found, found


class Filled(nn.Module):
    def forward(self, x):
        made = torch.empty(4, 8)
        made.copy_(x)
        return made + 1


DETERMINISTIC = {
    "unused draws": Calls(lambda x: x + 0 * torch.randn(4, 8)),
    "draws that round off": Calls(lambda x: (x * 0 + torch.rand(4, 8) + 2).floor()),
    "batch norm without state": nn.BatchNorm1d(8, track_running_stats=False),
    "eval": dropping().eval(),
    "no probability": Calls(lambda x: nn.functional.dropout(x, 0.0, True)),
    "instance norm": nn.Sequential(nn.Unflatten(1, (4, 2)), nn.InstanceNorm1d(4)),
    "batch norm": nn.BatchNorm1d(8).eval(),
    "attention": Calls(lambda x: nn.functional.scaled_dot_product_attention(x, x, x)),
    "written memory": Filled(),
    "written by an operator": Calls(lambda x: torch.ops.unwritten_tests.whole(x)),
    "nan": Calls(lambda x: torch.log(x)),
}


@pytest.mark.parametrize("module", DETERMINISTIC.values(), ids=DETERMINISTIC)
def test_a_deterministic_source_is_none_of_it(module):
    assert described(module) == ""


def test_lines_and_counts_of_calls_are_named():
    twice = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5))
    (operator,) = find_random_operators(program(twice))
    assert operator.count == 2
    assert "2 calls" in str(operator)


def validated(module, **settings):
    made = program(module)
    pte = write("random.pte", lowered({"run": made}).buffer)
    settings = ValidateConfig(**{"inputs": 1, "latency": {"seconds": 0}} | settings)
    return validate_package(pte, (), {"run": made}, {"run": [InputSet((X,))]}, settings, {})


def test_a_package_of_a_random_source_fails_and_is_not_compared():
    (method,) = validated(dropping()).methods
    (failure,) = method.failures
    assert failure["about"] == "source" and method.verdict == "failed"
    assert not method.runs


def test_sampling_on_purpose_is_judged_by_its_distribution():
    (method,) = validated(Noisy(1.0), random=True).methods
    assert method.verdict == "passed" and not method.failures
    assert method.random.startswith("declared random: shapes, ranges, means and variances of")
    assert not method.runs


class Noisy(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return x + self.scale * torch.rand(4, 8)


def test_a_package_with_another_distribution_fails():
    source, other = program(Noisy(1.0)), program(Noisy(0.0))
    pte = write("noisy.pte", lowered({"run": other}).buffer)
    settings = ValidateConfig(inputs=0, random=True)
    examples = {"run": [InputSet((X,))]}
    (method,) = validate_package(pte, (), {"run": source}, examples, settings, {}).methods
    assert method.verdict == "failed"


def test_a_declared_method_that_does_not_vary_is_judged_by_its_values():
    (method,) = validated(nn.Linear(8, 8), random=True).methods
    assert method.verdict == "passed" and method.runs and not method.random


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value * 3,
        lambda value: value.flip(0),
        lambda value: value * 0,
        lambda value: X,
        lambda value: value[:2],
        lambda value: torch.full_like(value, torch.nan),
    ],
    ids=["scaled", "flipped", "zero", "fixed", "shape", "nan"],
)
def test_the_distribution_of_calls_is_held_to_the_source(damage):
    torch.manual_seed(1)
    draw = lambda: nn.functional.dropout(X, 0.5, True)  # noqa: E731
    source = [[draw()] for _ in range(2 * REPEATS)]
    assert judge_random(["output"], source, [[draw()] for _ in range(REPEATS)]) == []
    assert judge_random(["output"], source, [[damage(draw())] for _ in range(REPEATS)])


def test_dropout_of_the_runtime_does_not_rescale_what_it_keeps():
    """ExecuTorch's portable kernel of native_dropout leaves out the factor 1 / (1 - p)."""
    (method,) = validated(Calls(lambda x: nn.functional.dropout(x, 0.5, True)), random=True).methods
    assert method.verdict == "failed"


def test_a_random_method_fails_without_the_feature_that_judges_it(monkeypatch):
    monkeypatch.setattr("pipeline.validate.method.has_feature", lambda name: name != "randomness")
    (method,) = validated(Noisy(1.0), random=True).methods
    (failure,) = method.failures
    assert method.verdict == "failed" and not method.random
    assert failure["what"] == 'is random, but this installation has no feature "randomness"'


def rarely(share):
    """Return a function that adds 1 to X in this share of its calls."""
    return lambda: X + (torch.rand(()) < share)


@pytest.mark.parametrize("share", [0.05, 0.02, 0.003])
def test_draws_that_rarely_matter_may_be_the_source_s_alone(share):
    draw = rarely(share)
    for seed in range(8):
        torch.manual_seed(seed)
        source = [[draw()] for _ in range(2 * REPEATS)]
        assert judge_random(["output"], source, [[draw()] for _ in range(REPEATS)]) == []


def test_draws_that_matter_too_often_or_never_fail():
    torch.manual_seed(0)
    source = [[rarely(0.3)()] for _ in range(2 * REPEATS)]
    for share in (0.0, 0.8):
        calls = [[rarely(share)()] for _ in range(REPEATS)]
        assert judge_random(["output"], source, calls), share
