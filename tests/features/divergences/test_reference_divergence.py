"""Finds where an exported program diverges from its eager reference, and the cause."""

from functools import partial
from io import BytesIO

import pytest
import torch
from torch import nn
from torch.export import export, load, save

from pipeline.features.divergences.reference_divergence import describe_divergence
from pipeline.program.inputs import InputSet
from tests.support import divergences
from tests.support.divergences import CASES, FILE, X, planted_line

CALLS = 0


def check(case, program, name):
    sentence = describe_divergence(program, case.reference, InputSet(case.args, case.kwargs))
    assert f"{FILE}:{planted_line(name)}:" in sentence
    assert f" in {case.module}" in sentence or not case.module
    for words in case.words:
        assert words in sentence


@pytest.mark.parametrize("name", CASES)
def test_planted(name):
    case = CASES[name]()
    check(case, case.program, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["export_flag", "helper_flag", "factor", "weights", "lifted"])
def test_saved_program(name):
    case, file = CASES[name](), BytesIO()
    save(case.program, file)
    check(case, load(file), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["export_flag", "factor", "steps", "dropout", "wide"])
def test_decomposed_program(name):
    case = CASES[name]()
    check(case, case.program.run_decompositions(), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["export_flag", "flag", "weights", "state"])
def test_strict_export(name, monkeypatch):
    monkeypatch.setattr(divergences, "export", partial(export, strict=True))
    case = CASES[name]()
    check(case, case.program, name)


class Pair(nn.Module):
    def forward(self, x):
        return x.sin(), x.cos()


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (lambda x: (x.cos(), x.sin()), "another of the values that both compute"),
        (lambda x: (x.sin(), x.cos(), x), "the program returns 2 values, the reference 3"),
        (lambda x: (x.sin()[None], x.cos()), "output 0: shape (2, 4) in the program, (1, 2, 4)"),
        (lambda x: (x.sin() + torch.randn(4) * 0, x.cos()), "draws random numbers"),
        (lambda x: (torch.tensor(x.numpy() * 5), x.cos()), "outside PyTorch"),
    ],
)
def test_form_of_outputs(reference, words):
    assert words in describe_divergence(export(Pair(), (X,)), reference, InputSet((X,)))


class Casting(nn.Module):
    """Computes under autocast wherever it runs, also during export."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        with AUTOCAST:
            return self.layer(x)


AUTOCAST = torch.autocast("cpu", torch.bfloat16)
LAYER = nn.Linear(4, 3).requires_grad_(False)


def casts_itself(x):
    return LAYER(x).to(torch.bfloat16)


@pytest.mark.parametrize(
    ("module", "reference", "side"),
    [
        (LAYER, AUTOCAST(LAYER.forward), "reference"),
        (LAYER, Casting(LAYER), "reference"),
        (Casting(LAYER), LAYER, "program"),
        (LAYER, casts_itself, ""),
        (Casting(LAYER), lambda x: Casting(LAYER)(x).float(), ""),
    ],
)
def test_autocast_around_one_of_both(module, reference, side):
    """Wherever autocast was entered, and not if the model requests a dtype."""
    sentence = describe_divergence(export(module, (X,)), reference, InputSet((X,)))
    said = f"only in the {side}, autocast computes in bfloat16; export and run the reference"
    assert (said in sentence) == bool(side)
    assert bool(side) == ("under the same autocast" in sentence)
    assert "aten._to_copy" in sentence


def test_one_output_in_the_place_of_two():
    what = describe_divergence(export(nn.ReLU(), (X,)), lambda x: (x.relu(), x), InputSet((X,)))
    assert what == "the program returns 1 value, the reference 2"


def test_reference_that_fails():
    assert describe_divergence(export(Pair(), (X,)), lambda x: 1 / 0, InputSet((X,))) == ""


def test_variables_are_restored():
    calls = 0

    def reference(x):
        nonlocal calls
        global CALLS
        calls += 1
        CALLS += 1
        return x.sin() * calls, x.cos()

    program = export(Pair(), (X,))
    assert describe_divergence(program, reference, InputSet((X,))) == ""
    assert (calls, CALLS) == (0, 0)


class Growing(nn.Module):
    """Computes something else from its second call on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x):
        self.calls.add_(1)
        if torch.compiler.is_exporting():
            return x + self.calls.clamp(max=1)
        return x + self.calls


def test_state_of_earlier_calls():
    """The program starts with the reference's state, not with a fresh one."""
    module = Growing()
    program = export(module, (X,))
    assert describe_divergence(program, module, InputSet((X,))) == ""
    module(X)
    sentence = describe_divergence(program, module, InputSet((X,)))
    assert "is_exporting()" in sentence and "buffer" not in sentence
    assert torch.equal(module.calls, torch.ones(4))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x):
        return x + self.calls.add_(1)


def test_state_that_begins_otherwise():
    module = Counting()
    program = export(Counting(), (X,))
    module.calls = torch.full((4,), 3.0)
    sentence = describe_divergence(program, module, InputSet((X,)))
    assert "buffer 'calls' in Counting" in sentence
