import operator

import pytest
import torch
from executorch.exir import to_edge
from torch import nn
from torch.export import export

from pipeline.program.module_paths import enclosing_modules
from pipeline.program.operators import base_name


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x):
        x = self.layers[0](x).relu()
        first, _ = self.layers[0](x).chunk(2, dim=1)
        return first + x.shape[0]


@pytest.fixture(scope="module")
def program():
    rows = torch.export.Dim("rows", min=4, max=8)
    return export(Twice(), (torch.randn(4, 4),), dynamic_shapes=({0: rows},), strict=True)


def calls(program):
    return [node for node in program.graph.nodes if node.op == "call_function"]


def test_operators_are_named_without_library_and_overload(program):
    named = {base_name(node) for node in calls(program)}
    assert {"linear", "relu", "add", "chunk"} <= named
    edge = {base_name(node) for node in calls(to_edge(program).exported_program())}
    assert {"permute_copy", "addmm", "relu", "add"} <= edge


def test_what_is_no_operator_has_no_name(program):
    assert {base_name(n) for n in program.graph.nodes if n.op != "call_function"} == {""}
    assert {base_name(n) for n in calls(program) if n.target is operator.getitem} == {""}


def test_a_second_call_is_of_the_same_module(program):
    linears = [node for node in calls(program) if base_name(node) == "linear"]
    assert [enclosing_modules(node) for node in linears] == [["", "layers.0"]] * 2
    relu = next(node for node in calls(program) if base_name(node) == "relu")
    assert enclosing_modules(relu) == [""]
    assert enclosing_modules(next(iter(program.graph.nodes))) == []


def test_marks_of_calls_and_of_the_exported_module_are_no_part_of_a_name(program):
    node = next(iter(calls(program)))
    stack = {"L__self__": ("L['self']", "Net"), "key": ("L['self'].layers.0@1", "Linear")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(node.meta, "nn_module_stack", stack)
        assert enclosing_modules(node)[-1] == "layers.0"
