"""A quantized package is held to the program that it was quantized to."""

import math

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.config.validation import ValidateConfig
from pipeline.program.inputs import InputSet
from pipeline.validate.metrics import compare
from pipeline.validate.quantization import (
    MARGIN_DB,
    MOST_DB,
    check_quantized,
    least_sqnr_allowed,
)
from pipeline.validate.results import Failure, MethodValidation, Run, Validation

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Rounded(nn.Module):
    """Its input, rounded to so many steps of one: as a quantization leaves it."""

    def __init__(self, steps=None):
        super().__init__()
        self.steps = steps

    def forward(self, x):
        return x * 1.0 if self.steps is None else torch.round(x * self.steps) / self.steps


class Whole(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)


def program(module):
    return export(module, (X,))


def sets(*factors):
    return [InputSet((X * factor,), {}, f"example {n}") for n, factor in enumerate(factors)]


def noise(steps, x=X):
    return compare(Rounded(steps)(x), x).sqnr_db


def test_a_package_may_be_as_far_away_as_the_quantization_is():
    floor = least_sqnr_allowed(program(Rounded()), program(Rounded(4)), sets(1.0, 0.5))
    assert floor == pytest.approx(min(noise(4), noise(4, X * 0.5)) - MARGIN_DB)
    assert 10 < floor < 30


def test_where_quantization_loses_nothing_roundings_are_allowed_all_the_same():
    assert least_sqnr_allowed(program(Rounded()), program(Rounded()), sets(1.0)) == MOST_DB
    assert least_sqnr_allowed(program(Rounded()), program(Rounded(1 << 20)), sets(1.0)) == MOST_DB


def test_nothing_is_asked_where_nothing_can_be_compared():
    assert least_sqnr_allowed(program(Whole()), program(Whole()), sets(1.0)) == MOST_DB
    assert least_sqnr_allowed(program(Whole()), program(Rounded(4)), sets(1.0)) is None
    assert least_sqnr_allowed(program(Rounded()), program(Rounded(4)), []) is None


def checked_with(methods, quantized, asked=None, again=()):
    """`asked` collects what the package is proved against once more."""

    def validate(programs, limits):
        if asked is not None:
            asked.append((list(programs), limits))
        failed = tuple(MethodValidation(f.method, failures=[f]) for f in again)
        return Validation("p.pte", failed, (), {})

    before = Validation("p.pte", tuple(methods), (), {})
    programs = {name: program(Rounded()) for name in ("run", "other")}
    given = {name: program(Rounded(4)) for name in quantized}
    examples, settings = {"run": sets(1.0)}, ValidateConfig(inputs=2)
    return check_quantized(before, validate, programs, given, examples, settings)


RAN = (MethodValidation("run", runs=[Run("example 0", ())]), MethodValidation("other"))


def test_what_fails_is_told_of_the_quantized_program():
    asked = []
    failure = Failure("run", "SQNR 10.0 dB is below 17.2 dB", "example 0", "output")
    other = Failure("other", "the package has this method, its source has not")
    validation = checked_with(RAN, ["run"], asked, [failure, other])
    assert validation.failures == (
        "run: example 0, output: SQNR 10.0 dB is below 17.2 dB, against the quantized program that "
        "it was made of",
    )
    assert not validation.methods[0].ok and validation.methods[1].ok
    ((names, limits),) = asked
    assert names == list(limits) == ["run"]
    floor = limits["run"].min_sqnr
    assert floor is not None and floor < noise(4) - MARGIN_DB + 1
    assert (limits["run"].atol, limits["run"].max_mean_abs) == (math.inf, None)


def test_float_methods_and_those_that_did_not_run_are_not_proved_again():
    asked = []
    assert checked_with(RAN, [], asked).ok
    assert checked_with(RAN, ["other"], asked).ok
    assert asked == []


def test_an_example_that_does_not_fit_is_left_to_validation():
    before = Validation("p.pte", RAN, (), {})
    wrong = {"run": [InputSet((X.double(),), {}, "example 0")]}
    programs, settings = {"run": program(Rounded())}, ValidateConfig(inputs=1)
    assert check_quantized(
        before, lambda *_: pytest.fail("asked"), programs, programs, wrong, settings
    ).ok
