"""What an exporter may return, and the errors for anything else."""

from types import ModuleType

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.features.exporters.exporter import (
    call_export_methods,
    find_references,
    parse_examples,
    parse_inputs,
)
from pipeline.store.errors import SourceError

PROGRAM = export(nn.ReLU(), (torch.ones(2),))


def exporter(returned, reference=None):
    module = ModuleType("m")
    module.export_methods = lambda: returned
    if reference is not None:
        module.reference = lambda method: reference
    return module


def test_only_the_wrong_methods_are_named():
    module = exporter({"a": PROGRAM, "b": (PROGRAM, nn.ReLU()), "c": (PROGRAM, 3), "d": nn.ReLU()})
    what = r"returned a dict of c: \(ExportedProgram, int\), d: ReLU; must be"
    with pytest.raises(SourceError, match=what):
        call_export_methods(module, {})


@pytest.mark.parametrize("way", ["pair", "function"])
@pytest.mark.parametrize(
    "circular",
    [PROGRAM, PROGRAM.module(), PROGRAM.module().forward],
    ids=["program", "module", "forward"],
)
def test_an_exported_program_is_no_reference(circular, way):
    module = exporter({"a": (PROGRAM, circular)} if way == "pair" else {"a": PROGRAM}, circular)
    with pytest.raises(SourceError, match=r"m.py: the reference of 'a' is an exported program"):
        find_references(module, *call_export_methods(module, {}), {})


def test_a_model_that_is_a_graph_may_be_a_reference():
    graph = torch.fx.symbolic_trace(nn.ReLU())
    module = exporter({"a": (PROGRAM, graph)})
    assert find_references(module, *call_export_methods(module, {}), {}) == {"a": graph}


def test_a_mistake_in_examples_names_the_method_once():
    sets = parse_inputs(exporter({}), "example", "a", PROGRAM, [(torch.ones(3),)])
    what = r"m.py: example_inputs\('a'\): example 0: argument 'input'"
    with pytest.raises(SourceError, match=what):
        list(sets)


def test_all_mistakes_in_examples_are_told_with_their_methods():
    returned = {"a": [(torch.ones(3),), (torch.ones(2, dtype=torch.int64),)], "b": [torch.ones(2)]}
    with pytest.raises(SourceError) as caught:
        parse_examples(exporter({}), {"a": PROGRAM, "b": PROGRAM}, returned)
    size, dtype, form = caught.value.lines
    assert size.startswith("/m.py: example_inputs('a'): example 0: argument 'input': size 3")
    assert dtype.startswith("/m.py: example_inputs('a'): example 1: argument 'input': dtype int64")
    assert form.startswith("/m.py: example_inputs('b'): example 0: a tensor, must be a tuple of")


def test_calibration_inputs_are_numbered_as_they_come():
    calls = iter([(torch.ones(2),), torch.ones(2), (torch.ones(2),)])
    sets = parse_inputs(exporter({}), "calibration", "a", PROGRAM, calls)
    assert next(sets).origin == "calibration 0"
    with pytest.raises(SourceError, match=r"calibration_inputs\('a'\): calibration 1: a tensor"):
        next(sets)
