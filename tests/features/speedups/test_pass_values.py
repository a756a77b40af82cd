"""Passes take over values that earlier passes computed, and no others; graphs are the same."""

from collections import Counter

import pytest
import torch
from executorch.exir.pass_base import ExportPass, _ExportPassBase
from torch._ops import OpOverload
from torch.export import Dim, export
from torch.fx import Interpreter

from pipeline.features.speedups.pass_values import kept_values, make_call
from pipeline.program.patching import replaced, wrapped

ATEN = torch.ops.aten


class Model(torch.nn.Module):
    """Two equal calls, a constant, sizes and a view. x: float32 [n, 4] -> [4 n], [n, 4]."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.arange(4.0))

    def forward(self, x):
        y = (x + 1) * (x + 1) * self.scale + torch.tensor([2.0, 1.0, 0.0, 3.0])
        return y.relu().reshape(y.shape[0] * 4), y.exp().sigmoid()


class Nonzero(torch.nn.Module):
    def forward(self, x):
        return x.nonzero() + 1


class Replaces(ExportPass):
    """Calls another operator, or the same with another dtype."""

    def __init__(self, target, *operators):
        super().__init__()
        self.target, self.operators = target, operators

    def call_operator(self, op, args, kwargs, meta):
        if op != self.target:
            return super().call_operator(op, args, kwargs, meta)
        for operator, more in self.operators:
            args = (super().call_operator(operator, args[:1], more, meta),)
        return args[0]


def graph_of(model, *inputs, **options):
    return export(model.eval(), inputs, **options).run_decompositions().graph_module


@pytest.fixture
def graph():
    return graph_of(Model(), torch.ones(3, 4), dynamic_shapes=({0: Dim("n", min=2, max=8)},))


@pytest.fixture
def computed():
    """Yield a counter of the operators that passes compute; calls are traced as patched."""
    counter = Counter()

    def call(original, interpreter, target, args, kwargs):
        if isinstance(target, OpOverload) and target != ATEN.sym_size.int:  # computes a tensor
            counter[target] += 1
        return original(interpreter, target, args, kwargs)

    with (
        replaced(_ExportPassBase, "_fx", make_call),
        wrapped(Interpreter, "call_function", call),
    ):
        yield counter


def apply(graph_pass, graph):
    return graph_pass(graph).graph_module


def shown(graph):
    return [
        (node.op, node.name, str(node.target), str(node.args), str(node.meta.get("val")))
        for node in graph.graph.nodes
    ]


def tensors(graph):
    values = [node.meta.get("val") for node in graph.graph.nodes if node.op == "call_function"]
    return [value for value in values if isinstance(value, torch.Tensor)]


def test_a_second_pass_computes_no_tensor(graph, computed):
    plain = apply(ExportPass(), apply(ExportPass(), graph))
    computed.clear()
    with kept_values():
        first = apply(ExportPass(), graph)
        assert computed
        computed.clear()
        second = apply(ExportPass(), first)
    assert not computed
    assert shown(second) == shown(plain)
    assert [id(value) for value in tensors(second)] == [id(value) for value in tensors(first)]


def test_equal_calls_have_values_of_their_own(graph, computed):
    with kept_values():
        once = apply(ExportPass(), graph)
        twice = apply(ExportPass(), once)
    for traced in (once, twice):
        values = tensors(traced)
        assert len({id(value) for value in values}) == len(values) > 6


SIGMOID = ((ATEN.sigmoid.default, {}),)
NEGATED = ((ATEN.neg.default, {}), (ATEN.neg.default, {}))
HALVES = ((ATEN._to_copy.default, {"dtype": torch.float16}),)
VIEW = ((ATEN.alias.default, {}),)


@pytest.mark.parametrize(
    ("operators", "again"),
    [(SIGMOID, 1), (NEGATED, 3), (HALVES, 2), (VIEW, 2)],
    ids=["same kind", "two", "other dtype", "view"],
)
def test_calls_after_a_changed_one_are_computed_if_its_value_changed(
    graph, computed, operators, again
):
    replaces = Replaces(ATEN.exp.default, *operators)
    plain = apply(replaces, apply(ExportPass(), graph))
    with kept_values():
        first = apply(ExportPass(), graph)
        computed.clear()
        second = apply(replaces, first)
    assert shown(second) == shown(plain)
    assert computed.total() == again, computed


def test_each_call_makes_new_symbols(computed):
    graph = graph_of(Nonzero(), torch.ones(3))
    computed.clear()
    with kept_values():
        first = apply(ExportPass(), graph)
        apply(ExportPass(), first)
    assert computed[ATEN.nonzero.default] == 2


def test_values_are_kept_within_the_context_alone(graph, computed):
    with kept_values():
        first = apply(ExportPass(), graph)
    computed.clear()
    apply(ExportPass(), first)
    assert computed[ATEN.exp.default] == 1
