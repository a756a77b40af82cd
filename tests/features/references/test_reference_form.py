"""References with another output structure than the export: one line names the difference."""

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.features.references.recordings import (
    RecordedCall,
    Recording,
    UncomparableOutputError,
    call_reference,
)
from pipeline.program.inputs import InputSet
from tests.support.referenced import judge

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def find_failures(function, reference):
    """Return the failures of a function's export compared with another function."""
    program = export(Calls(function), (X.clone(),))
    inputs = InputSet((X.clone(),))
    outputs = call_reference(reference, program, inputs)
    recording = Recording("eager", [[RecordedCall("run", inputs, outputs)]])
    failures = judge({"run": recording}, {"run": program})["run"].failures
    return [failure["what"].removeprefix("the export differs from eager: ") for failure in failures]


def pair(x):
    return x + 1, x * 2


@pytest.mark.parametrize(
    ("function", "reference", "said"),
    [
        (pair, lambda x: x + 1, "returns output[0], output[1], the reference output"),
        (pair, lambda x: (x + 1, x * 2, x), "the exported program does not return output[2]"),
        (lambda x: (x, None), lambda x: (x,), "does not return output[1] (None in the exported"),
        (lambda x: (x,), lambda x: (x, None), "not return output[1] (None in the reference)"),
        (lambda x: {"a": x}, lambda x: {"b": x}, "returns output['a'], the reference output['b']"),
        (lambda x: {"a": x}, lambda x: (x, x), "returns output['a'], the reference output[0], ou"),
        (lambda x: (x, (x, x)), lambda x: (x, x, x), "returns output[1][0], output[1][1], the re"),
        (lambda x: (x, 3), lambda x: (x, torch.tensor(3)), "int 3, must be a tensor"),
        (lambda x: (x, True), lambda x: (x, 1), "bool True, must be int 1"),
        (lambda x: (x, 3.0), lambda x: (x, 3), "float 3.0, must be int 3"),
        (lambda x: (x, x), lambda x: (x, None), "a tensor, must be None"),
        (lambda x: x > 0, lambda x: (x > 0).int(), "dtype bool, must be int32"),
        (lambda x: x + 1, lambda x: x.add_(1), "the reference changes input 'x' in place, and the"),
        (lambda x: x.add_(1), lambda x: x + 1, "program changes input 'x' in place, the referenc"),
        (lambda x: x.add_(1), lambda x: x.add_(2), "absolute error 1"),
    ],
)
def test_one_line_names_what_differs(function, reference, said):
    sentence = find_failures(function, reference)[0]
    assert said in sentence


def test_a_number_that_differs_is_no_other_form():
    assert find_failures(lambda x: (x, 3), lambda x: (x, 4)) == [
        "absolute error 1 (3, must be 4) exceeds 0"
    ]


@pytest.mark.parametrize(
    ("function", "reference"),
    [
        (pair, lambda x: [x + 1, x * 2]),
        (lambda x: (x, None, 3, True), lambda x: (x, None, 3, True)),
        (lambda x: {"a": x, "b": x + 1}, lambda x: {"b": x + 1, "a": x}),
        (lambda x: x.add_(1), lambda x: x.add_(1)),
        (lambda x: (x / x.relu()).add_(1), lambda x: (x / x.relu()).add_(1)),
    ],
)
def test_what_a_runtime_cannot_tell_apart_is_no_difference(function, reference):
    assert not find_failures(function, reference)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (lambda x: pair(x)[::-1], ["output[0] of the reference is output[1] of the export"]),
        (lambda x: (x * 2, x * 3), []),
        (lambda x: (x + 1, x + 1), ["output[1] of the reference is output[0] of the export"]),
    ],
)
def test_outputs_in_another_order_are_named(reference, said):
    """If an output matches none of the others, its error counts."""
    (sentence, *others) = find_failures(pair, reference)
    assert all(text in sentence for text in said) and (not others or not said)
    assert bool(said) != ("absolute error" in sentence)


def test_nan_in_an_input_that_stays_is_no_change():
    program = export(nn.ReLU(), (X,))
    outputs = call_reference(nn.ReLU(), program, InputSet((torch.full((2, 4), torch.nan),)))
    assert [*outputs] == ["output"]


def test_what_no_method_gives_cannot_be_compared():
    with pytest.raises(UncomparableOutputError, match=r"^output is of type set, must be a tensor"):
        find_failures(lambda x: x, lambda x: {1})
