"""Calls with random results, each reported with its name and line."""

import datetime
import os
import random
import secrets
import time
import uuid

import numpy
import pytest
import torch

from pipeline.features.references.random_calls import (
    describe_random_calls,
    draws_numbers,
    find_random_calls,
)
from tests.support.bench import REPOSITORY
from tests.support.referenced import judge, record


def find_names(function):
    calls = find_random_calls(function, REPOSITORY)
    parts = [call.partition(" (tests/features/references/test_random_calls.py:") for call in calls]
    assert all(line for _, line, _ in parts)
    return [name for name, _, _ in parts]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda: random.random(), "random.random"),
        (lambda: random.Random().gauss(0, 1), "random.gauss"),
        (lambda: numpy.random.rand(2), "numpy.random.rand"),
        (lambda: numpy.random.default_rng().normal(), "numpy.random.default_rng"),
        (lambda: secrets.randbelow(7), "secrets.randbelow"),
        (lambda: uuid.uuid4(), "uuid.uuid4"),
        (lambda: os.urandom(4), "os.urandom"),
        (lambda: time.perf_counter(), "time.perf_counter"),
        (lambda: datetime.datetime.now(), "datetime.now"),
        (lambda: torch.rand(2), "torch.rand"),
        (lambda: torch.ones(2).uniform_(), "torch.uniform_"),
        (lambda: torch.nn.functional.dropout(torch.ones(2)), "torch.dropout"),
    ],
)
def test_a_call_that_gives_other_values_is_named_with_its_line(function, name):
    assert find_names(function) == [name]


def test_what_gives_the_same_values_is_not_named():
    torch_random = numpy.random.rand
    assert not find_names(lambda: (numpy.random.default_rng(0).random(), torch.ones(2).relu()))
    assert numpy.random.rand is torch_random


def test_an_export_keeps_values_of_python_and_none_of_torch():
    calls = find_random_calls(lambda: (torch.rand(2), random.random()), REPOSITORY)
    assert describe_random_calls(calls).endswith("): an export keeps the value that tracing saw")
    first = describe_random_calls(calls[:1])
    assert first.startswith("it calls torch.rand (tests/features/references/test")
    assert "tracing" not in first


class Noisy(torch.nn.Module):
    def forward(self, x):
        return x * random.random()


def test_a_reference_that_draws_in_python_fails_with_the_call():
    programs = {"run": torch.export.export(Noisy(), (torch.ones(2),))}
    result = judge(record({"run": Noisy()}, programs), programs)["run"]
    (failure,) = result.failures
    call = "random.random (tests/features/references/"
    assert f"two runs on the same inputs; it calls {call}" in failure["what"]


class RarelyNoisy(torch.nn.Module):
    def forward(self, x):
        return x * (2 if random.random() < 0.1 else 1)


def test_a_reference_whose_draws_rarely_matter_fails():
    programs = {"run": torch.export.export(RarelyNoisy(), (torch.ones(2),))}
    result = judge(record({"run": RarelyNoisy()}, programs), programs)["run"]
    (failure,) = result.failures
    assert "the reference is random: output differs by up to 1" in failure["what"]


class Once(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factors = iter([2.0, 2.0])  # one for tracing

    def forward(self, x):
        return x * next(self.factors)


def test_a_reference_that_raises_only_later_is_random():
    module = Once()
    programs = {"run": torch.export.export(module, (torch.ones(2),))}
    result = judge(record({"run": module}, programs), programs)["run"]
    assert "it raises StopIteration" in result.failures[0]["what"]


class Branching(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,))


def test_watching_calls_does_not_change_what_a_reference_returns():
    """Torch compiles control flow of a reference, but can't while its calls are watched."""
    programs = {"run": torch.export.export(Branching(), (torch.ones(2),))}
    result = judge(record({"run": Branching()}, programs), programs)["run"]
    assert not result.failures


def test_a_clock_draws_no_numbers():
    calls = find_random_calls(lambda: (time.time(), datetime.datetime.now()), REPOSITORY)
    assert len(calls) == 2 and not draws_numbers(calls)
    assert draws_numbers([*calls, "random.random"])
