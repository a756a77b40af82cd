"""Passes that leave a graph unchanged don't trace it again; all others do. Graphs are the same."""

import copy

import pytest
import torch
from executorch.exir import to_edge
from executorch.exir.pass_base import ExportPass
from executorch.exir.passes.normalize_transpose_pass import NormalizeTransposePass
from executorch.exir.passes.scalar_to_tensor_pass import ScalarToTensorPass
from torch.export import Dim, export

from pipeline.features.speedups.idle_passes import is_idle
from pipeline.features.speedups.patches import fast_lowering
from pipeline.program.traced import Traced


class Everything(torch.nn.Module):
    """Scalars, constants, mixed dtypes, a transpose, and arithmetic on sizes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.arange(4))

    def forward(self, x):
        y = self.linear(x) * 2 + x.shape[0] * self.scale
        return y.t() + torch.tensor([[1.5], [2], [3], [4]]), (y > 0).sum()


class Plain(torch.nn.Module):
    def forward(self, x):
        return (x + x).relu()


def program_of(module):
    return export(module.eval(), (torch.ones(3, 4),), dynamic_shapes=({0: Dim("n", min=2, max=8)},))


def traced(module):
    graph = ExportPass()(program_of(module).graph_module).graph_module
    known = Traced()
    known.keep(graph)
    assert known.holds(graph)
    return graph


class Renames(ExportPass):
    def call_operator(self, op, args, kwargs, meta):
        meta["name of ours"] = "another"
        return super().call_operator(op, args, kwargs, meta)


class Doubles(ExportPass):
    def call_operator(self, op, args, kwargs, meta):
        super().call_operator(op, args, kwargs, meta)
        return super().call_operator(op, args, kwargs, meta)


class LeavesOut(ExportPass):
    def call_operator(self, op, args, kwargs, meta):
        if op == torch.ops.aten.relu.default:
            return args[0]
        return super().call_operator(op, args, kwargs, meta)


class Swaps(ExportPass):
    def call_operator(self, op, args, kwargs, meta):
        return super().call_operator(op, tuple(reversed(args)), kwargs, meta)


class SeesOutputs(ExportPass):
    def output(self, results, meta):
        return super().output(results, meta)


class Fails(ExportPass):
    def call_operator(self, op, args, kwargs, meta):
        raise ValueError("no")


@pytest.mark.parametrize(
    "one", [Renames, Doubles, LeavesOut, SeesOutputs, Fails], ids=lambda one: one.__name__
)
def test_a_pass_that_may_change_something_is_not_idle(one):
    assert not is_idle(one(), traced(Plain()))


@pytest.mark.parametrize("one", [ExportPass, NormalizeTransposePass, ScalarToTensorPass, Swaps])
def test_a_pass_is_idle_where_it_calls_what_nodes_call(one):
    assert is_idle(one(), traced(Plain()))  # its operands are the same value


@pytest.mark.parametrize("one", [NormalizeTransposePass, ScalarToTensorPass, Swaps])
def test_a_pass_is_not_idle_where_it_calls_something_else(one):
    assert not is_idle(one(), traced(Everything()))


def test_nothing_is_computed_while_it_is_found(monkeypatch):
    graph = traced(Plain())
    monkeypatch.setattr(torch.fx.Interpreter, "run_node", None)
    monkeypatch.setattr(ExportPass, "_fx", None)
    assert is_idle(ExportPass(), graph)


def test_a_graph_that_was_changed_since_is_traced_again():
    graph = ExportPass()(program_of(Plain()).graph_module).graph_module
    known = Traced()
    known.keep(graph)
    relu = next(n for n in graph.graph.nodes if n.target == torch.ops.aten.relu.default)
    relu.meta["val"] = relu.meta["val"].clone()
    assert not known.holds(graph)


@pytest.mark.parametrize("module", [Everything, Plain])
def test_edge_programs_are_the_same_with_fewer_traces(module, monkeypatch):
    program, traces = program_of(module()), []
    original = ExportPass.call_submodule

    def counted(self, *given):
        traces.append(type(self).__name__)
        return original(self, *given)

    monkeypatch.setattr(ExportPass, "call_submodule", counted)

    def describe():
        del traces[:]
        edge = to_edge(copy.deepcopy(program)).exported_program()
        nodes = [
            (n.name, n.op, str(n.target), str(n.args), str(n.kwargs), str(n.meta.get("val")))
            for n in edge.graph.nodes
        ]
        return nodes, len(traces)

    plain, all_traces = describe()
    with fast_lowering():
        fast, fewer = describe()
    assert fast == plain
    assert fewer < all_traces
