"""A quantized package is held to the program that it was quantized to."""

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.config.validation import ValidateConfig
from pipeline.program.inputs import InputSet
from pipeline.validate.default_limits import LEAST_SQNR, limit_noise
from pipeline.validate.limits import OutputLimits
from pipeline.validate.metrics import compare
from pipeline.validate.package import validate_package
from tests.devices.test_bindings import lowered, write

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Rounded(nn.Module):
    """Its input, rounded to so many steps of one: as a quantization leaves it."""

    def __init__(self, steps=None):
        super().__init__()
        self.steps = steps

    def forward(self, x):
        return x * 1.0 if self.steps is None else torch.round(x * self.steps) / self.steps


def program(module):
    return export(module, (X,))


def sets(*factors):
    return [InputSet((X * factor,), {}, f"example {n}") for n, factor in enumerate(factors)]


def noise(steps):
    return compare(Rounded(steps)(X), X).sqnr_db


def limited(quantized, added):
    return limit_noise(X, quantized, OutputLimits(min_sqnr=added)).min_sqnr


def test_noise_may_be_that_of_quantization_and_what_the_package_adds():
    found = limited(Rounded(4)(X), 40.0)
    assert noise(4) - 1.5 < found < noise(4)
    assert limited(Rounded(4)(X), noise(4)) == pytest.approx(noise(4) - 6.02, abs=0.1)
    assert limited(X, 40.0) == pytest.approx(40, abs=0.11)


def test_a_quantization_that_loses_the_signal_is_no_excuse():
    assert limited(torch.zeros_like(X), 40.0) == LEAST_SQNR
    few = limit_noise(X[0], torch.zeros(8), OutputLimits(min_sqnr=40.0)).min_sqnr
    assert few < LEAST_SQNR  # a few values may be near zero by chance


def test_nothing_is_asked_where_nothing_can_be_compared():
    free = OutputLimits(integers=True)
    assert limit_noise(X > 0, X > 0, OutputLimits(min_sqnr=40.0)) == free
    assert limit_noise(X, X, OutputLimits()) == free
    assert limit_noise(torch.zeros_like(X), X, OutputLimits(min_sqnr=40.0)) == free


def validated(made, quantized, examples=(), **settings):
    """What comes of a package of `made`, whose float program rounds nothing."""
    pte = write("rounded.pte", lowered({"run": program(made)}).buffer)
    programs, given = {"run": program(Rounded())}, {"run": program(quantized)}
    settings = ValidateConfig(**{"inputs": 2} | settings)
    return validate_package(pte, (), programs, {"run": examples}, settings, {}, quantized=given)


@pytest.mark.parametrize("settings", [{}, {"atol": 1.0}], ids=["derived", "config"])
def test_a_package_is_held_to_the_quantized_program_too(settings):
    right = validated(Rounded(4), Rounded(4), **settings)
    assert right.ok
    (record,) = right.to_json()["methods"]
    assert record["limits_from"] == ("config" if settings else "quantized")
    assert record["quantized"]["sqnr_db"] == "inf"
    assert record["quantized"]["limits"]["min_sqnr"] > 10
    failures = validated(Rounded(2), Rounded(4), sets(1.0), **settings).failures
    assert any(each.startswith("run: example 0, output: SQNR ") for each in failures)
    about = ", against the quantized program that it was made of"
    assert any(each.endswith(about) for each in failures)


def test_a_method_that_did_not_run_is_not_held_to_its_quantized_program():
    assert validated(Rounded(2), Rounded(4), inputs=0).failures == (
        "run: no input set ran: give examples, or have inputs generated",
    )


def test_an_example_that_does_not_fit_fails_once():
    wrong = [InputSet((X.double(),), {}, "example 0")]
    assert len(validated(Rounded(4), Rounded(4), wrong).failures) == 1
