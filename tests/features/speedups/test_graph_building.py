"""Graphs built in other ways than torch's are the same graphs."""

import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Graph, GraphModule
from torch.fx.passes.tools_common import legalize_graph

from pipeline.features.speedups.graph_building import make_legalize

FUNCTIONS = [torch.sin, torch.add, operator.add, operator.mul, torch.cat, operator.floordiv]


@st.composite
def plans(draw):
    """Draw inputs, calls with the positions of their arguments, results, moves and removals."""
    inputs, calls = draw(st.integers(1, 3)), []
    for number in range(draw(st.integers(0, 12))):
        places = st.lists(st.integers(0, inputs + number - 1), min_size=2, max_size=3)
        calls.append((draw(st.sampled_from(FUNCTIONS)), draw(places)))
    every = range(inputs + len(calls))
    some = st.lists(st.sampled_from(every), min_size=1, max_size=4)
    return inputs, calls, draw(some), draw(st.lists(st.sampled_from(every))), draw(some)


def make_module(plan):
    """Make a graph out of order, as ExecuTorch leaves it after extracting a partition."""
    inputs, calls, results, moved, erased = plan
    graph = Graph()
    nodes = [graph.placeholder(f"x_{number}") for number in range(inputs)]
    for function, places in calls:
        nodes.append(graph.call_function(function, tuple(nodes[place] for place in places)))
    last = graph.output(tuple(nodes[place] for place in results))
    for place in moved:
        last.prepend(nodes[place])
    for place in sorted({*erased} - {*range(inputs)}, reverse=True):
        if not nodes[place].users:
            graph.erase_node(nodes[place])
    module = GraphModule(torch.nn.Module(), Graph())
    module._graph, graph.owning_module = graph, module
    return module


def describe(module):
    """Return everything that later graph code can see, including names of new nodes."""
    graph = module.graph
    nodes = [
        (
            node.name,
            node.op,
            node.target,
            str(node.args),
            str(node.kwargs),
            list(map(str, node.users)),
        )
        for node in graph.nodes
    ]
    found = [[n.name for n in graph.find_nodes(op="call_function", target=f)] for f in FUNCTIONS]
    new = [graph.call_function(function, (1, 2)).name for function in (*FUNCTIONS, torch.sin)]
    inside = [list(map(str, node.all_input_nodes)) for node in graph.nodes]
    names = graph._graph_namespace
    owners = {node.name: name for node, name in names._obj_to_name.items()}
    taken = names._used_names, names._base_count, owners
    return nodes, found, new, taken, inside, module.graph.owning_module is module


@settings(max_examples=75, deadline=None)
@given(plans())
def test_a_graph_is_sorted_in_place_as_by_a_copy(plan):
    module = make_module(plan)
    expected, found = legalize_graph(make_module(plan)), make_legalize(legalize_graph)(module)
    assert found is module
    assert describe(found) == describe(expected)
    assert describe(make_legalize(legalize_graph)(found)) == describe(legalize_graph(expected))
    assert found.code == expected.code


def test_a_graph_with_a_cycle_is_refused():
    graph = Graph()
    first = graph.call_function(torch.sin, (graph.placeholder("x"),))
    second = graph.call_function(torch.sin, (first,))
    graph.output(second)
    first.args = (second,)
    with pytest.raises(RuntimeError, match="cycles"):
        make_legalize(legalize_graph)(GraphModule(torch.nn.Module(), graph))


@pytest.mark.parametrize("name", ["sin", "sin_01", "add_2", "_0", "float", "a b", "1", "", "None"])
def test_a_name_is_kept_or_changed_as_in_a_copy(name):
    """torch changes names that aren't identifiers or that shadow a builtin."""

    def make():
        graph = Graph()
        first = graph.call_function(torch.sin, (graph.placeholder("x"),))
        second = graph.call_function(torch.add, (first, first))
        graph.output(second)
        second.name = name
        return GraphModule(torch.nn.Module(), graph)

    found = make_legalize(legalize_graph)(make())
    assert describe(found) == describe(legalize_graph(make()))


def test_a_node_can_be_renamed():
    module = make_legalize(legalize_graph)(make_module((1, [(torch.sin, [0, 0])], [1], [], [])))
    node = next(node for node in module.graph.nodes if node.op == "call_function")
    node._rename("other")
    assert node.name == "other"
