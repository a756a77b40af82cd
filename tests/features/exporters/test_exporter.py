"""What an exporter may return, and what it is told otherwise."""

from types import ModuleType

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.features.exporters.exporter import call_export_methods, find_references, parse_inputs
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
