"""A signature's maps are cached, and always match its current specs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)

from pipeline.features.speedups.patches import fast_lowering
from pipeline.features.speedups.signature_maps import SOURCES

NAMES = [name for names in SOURCES.values() for name in names]
ORIGINALS = {name: vars(ExportGraphSignature)[name].fget for name in NAMES}


def make_signature(count=4):
    kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    inputs = [
        InputSpec(kinds[i % 3], TensorArgument(f"p{i}"), f"t{i}", persistent=True)
        for i in range(count)
    ]
    outputs = [OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument("o"), "t1")]
    return ExportGraphSignature(inputs, outputs)


def read(signature):
    return {name: dict(getattr(signature, name)) for name in NAMES}


CHANGES = {
    "rename": lambda signature, i: signature.replace_all_uses(f"p{i}", f"q{i}"),
    "remove": lambda signature, i: signature.input_specs.pop(i % len(signature.input_specs)),
    "swap": lambda signature, i: signature.input_specs.reverse(),
    "target": lambda signature, i: setattr(signature.input_specs[0], "target", f"u{i}"),
    "kind": lambda signature, i: setattr(signature.input_specs[-1], "kind", InputKind.BUFFER),
    "name": lambda signature, i: setattr(signature.input_specs[0].arg, "name", f"r{i}"),
    "list": lambda signature, i: setattr(signature, "input_specs", signature.input_specs[:2]),
    "output": lambda signature, i: setattr(signature.output_specs[0].arg, "name", f"o{i}"),
}


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(0, 3)), max_size=6))
def test_no_change_of_a_spec_is_missed(changes):
    signature = make_signature()
    with fast_lowering():
        for change, number in changes:
            read(signature)
            if signature.input_specs:
                CHANGES[change](signature, number)
            expected = {name: dict(get(signature)) for name, get in ORIGINALS.items()}
            assert read(signature) == expected


def test_a_change_elsewhere_discards_no_map():
    """A partition gets a signature of its own each time that one is cut out."""
    signature = make_signature()
    with fast_lowering():
        kept = signature.inputs_to_parameters
        make_signature().replace_all_uses("p0", "q0")
        assert signature.inputs_to_parameters is kept
        signature.replace_all_uses("p0", "q0")
        assert signature.inputs_to_parameters is not kept


def test_an_equal_spec_is_another():
    """A map may hold on while an equal spec takes a place, but not once that one changes."""
    signature = make_signature()
    first = signature.input_specs[0]
    equal = InputSpec(first.kind, TensorArgument(first.arg.name), first.target, first.persistent)
    with fast_lowering():
        assert signature.inputs_to_parameters["p0"] == "t0"
        signature.input_specs[0] = equal
        assert signature.inputs_to_parameters["p0"] == "t0"
        equal.target = "other"
        assert signature.inputs_to_parameters["p0"] == "other"


@pytest.mark.parametrize("name", NAMES)
def test_a_map_is_made_once_while_nothing_changes(name):
    signature = make_signature()
    with fast_lowering():
        assert getattr(signature, name) is getattr(signature, name)
    assert getattr(signature, name) is not getattr(signature, name)
    assert vars(ExportGraphSignature)[name].fget is ORIGINALS[name]
    assert "__setattr__" not in vars(TensorArgument)


def test_a_signature_in_the_place_of_another_has_maps_of_its_own():
    """The new signature may reuse the memory of one that is gone."""
    with fast_lowering():
        for count in range(1, 30):
            assert len(make_signature(count).inputs_to_parameters) == (count + 2) // 3


def test_an_exported_program_keeps_its_signature():
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    before = read(program.graph_signature)
    with fast_lowering():
        assert read(program.graph_signature) == before
    assert set(vars(program.graph_signature)) == {"input_specs", "output_specs"}
