"""Modules are found by name, and names by module, as torch finds them."""

import sys

import pytest
import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.pass_base import ExportPass, _ExportPassBase
from hypothesis import given
from hypothesis import strategies as st
from torch.export.unflatten import _assign_attr, _AttrKind
from torch.fx import Graph

from pipeline.features.speedups.module_names import make_argument, make_assign
from pipeline.features.speedups.patches import fast_lowering
from pipeline.program.patching import replaced

NAMES = ["a", "ab", "a@1", "a@12", "a@x", "a.b", "b", "weight"]
# The names of modules that exist beforehand, and the targets of tensors.
siblings = st.lists(st.sampled_from(["a", "a@1", "a@x", "a\n", "ab", "b"]), max_size=4)
targets = st.lists(st.lists(st.sampled_from(NAMES), min_size=1).map(".".join), max_size=5)


def assign_all(assign, modules, targets, kind):
    """Return what the module holds after each assignment, or the error that it raises."""
    root = torch.nn.Module()
    for name in modules:
        root.add_module(name, torch.nn.Module())
    root.nothing = None
    states = []
    for number, target in enumerate(targets):
        value = torch.nn.Parameter(torch.tensor(float(number)))
        try:
            assign(value, root, target, attr_kind=kind, persistent=number % 2 == 0)
        except Exception as error:
            states.append(repr(error))
        modules = [name for name, _ in root.named_modules()]
        tensors = {**dict(root.named_parameters()), **dict(root.named_buffers())}
        states.append((modules, {name: float(each) for name, each in tensors.items()}))
    return states, list(root.state_dict())


@given(siblings, targets, st.sampled_from([_AttrKind.PARAMETER, _AttrKind.BUFFER]))
def test_a_weight_is_assigned_as_by_torch(modules, targets, kind):
    expected = assign_all(_assign_attr, modules, targets, kind)
    assert assign_all(make_assign(_assign_attr), modules, targets, kind) == expected


def test_a_weight_among_many_compares_no_names(monkeypatch):
    monkeypatch.setattr(sys.modules[_assign_attr.__module__], "_is_call_name", None)
    targets = [f"layers.{number}.weight" for number in range(9)]
    states, names = assign_all(make_assign(_assign_attr), [], targets, _AttrKind.PARAMETER)
    assert names == targets and len(states) == 9


def make_partitions(count):
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    return [LoweredBackendModule(program, "Backend", b"", []) for _ in range(count)]


def create_arguments(create, values):
    """Return the nodes that a tracer makes of modules, and the names of its modules."""
    tracer = ExportPass.ExportTracer(ExportPass(), Graph()._codegen)
    with replaced(_ExportPassBase.ExportTracer, "create_arg", lambda original: create):
        nodes = [tracer.create_arg(value) for value in values]
    return [(node.op, node.target, node.name) for node in nodes], [*tracer.root._modules]


def test_a_partition_has_the_name_that_torch_finds():
    first, second = make_partitions(2)
    holder = torch.nn.Module()
    holder.add_module("inner", second)
    values = [first, second, first, holder, second]
    original = _ExportPassBase.ExportTracer.create_arg
    nodes, names = create_arguments(make_argument(original), values)
    assert (nodes, names) == create_arguments(original, values)
    assert nodes[-1][1] == "lowered_module_1"


def test_a_partition_within_another_module_is_left_to_torch():
    """torch finds it there first, and can't refer to it."""
    (partition,) = make_partitions(1)
    holder = torch.nn.Module()
    holder.add_module("inner", partition)
    original = _ExportPassBase.ExportTracer.create_arg
    for create in (original, make_argument(original)):
        with pytest.raises(AttributeError, match="inner"):
            create_arguments(create, [holder, partition])


def test_partitions_are_not_searched_for(monkeypatch):
    values = make_partitions(2)
    tracer = ExportPass.ExportTracer(ExportPass(), Graph()._codegen)
    with fast_lowering():
        monkeypatch.setattr(torch.nn.Module, "named_modules", None)
        names = [tracer.create_arg(value).target for value in values]
    assert names == ["lowered_module_0", "lowered_module_1"]
