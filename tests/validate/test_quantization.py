"""A quantized package is held to the program that it was quantized to."""

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.config.validation import ValidateConfig
from pipeline.program.inputs import InputSet
from pipeline.validate.metrics import compare
from pipeline.validate.package import validate_package
from pipeline.validate.quantization import MARGIN_DB, MOST_DB, least_sqnr_allowed
from tests.devices.test_bindings import lowered, write

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


def validated(made, quantized, examples=(), **settings):
    """What comes of a package of `made`, whose float program rounds nothing."""
    pte = write("rounded.pte", lowered({"run": program(made)}).buffer)
    programs, given = {"run": program(Rounded())}, {"run": program(quantized)}
    settings = ValidateConfig(**{"atol": 1.0, "inputs": 2} | settings)
    return validate_package(pte, (), programs, {"run": examples}, settings, {}, quantized=given)


def test_a_package_is_held_to_the_quantized_program_too():
    assert validated(Rounded(4), Rounded(4)).ok
    failures = validated(Rounded(2), Rounded(4), sets(1.0)).failures
    assert failures[0].startswith("run: example 0, output: SQNR ")
    assert all(
        each.endswith(", against the quantized program that it was made of") for each in failures
    )


def test_a_method_that_did_not_run_is_not_held_to_its_quantized_program():
    assert validated(Rounded(2), Rounded(4), inputs=0).failures == (
        "run: no input set ran: give examples, or have inputs generated",
    )


def test_an_example_that_does_not_fit_fails_once():
    wrong = [InputSet((X.double(),), {}, "example 0")]
    assert len(validated(Rounded(4), Rounded(4), wrong).failures) == 1
