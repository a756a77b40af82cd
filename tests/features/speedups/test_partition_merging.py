"""Groups of nodes become the same partitions as when all pairs are tried."""

import random

import pytest
import torch
from executorch.backends.xnnpack.partition.config import gemm_configs
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge
from executorch.exir.backend.canonical_partitioners.group_partitioner import (
    GroupBasedPartitioner,
)
from torch.export import export
from torch.fx import Graph, GraphModule
from torch.fx.passes.operator_support import OperatorSupportBase

from pipeline.features.speedups.patches import fast_lowering


class Marked(OperatorSupportBase):
    def is_node_supported(self, submodules, node):
        return node.meta.get("supported", False)


def make_random_graph(seed):
    """Return a graph, and groups of nodes that may be far apart, lie on paths of one another, or
    contain a node that feeds them all."""
    chance = random.Random(seed)
    graph = Graph()
    nodes = [graph.placeholder(f"x{place}") for place in range(chance.randint(1, 3))]
    reach = chance.choice((2, 4, 30))
    for _ in range(chance.randint(2, 16)):
        operands = [chance.choice(nodes[-reach:]) for _ in range(2)]
        nodes.append(graph.call_function(torch.add, tuple(operands)))
    graph.output(nodes[-1])
    share = chance.choice((0.5, 0.8, 1.0))
    grouped = {}
    for node in nodes:
        node.meta["supported"] = chance.random() < share
        grouped.setdefault(chance.randint(0, 12), []).append(node)
    groups = [group for group in grouped.values() if chance.random() < 0.5]
    return GraphModule(torch.nn.Module(), graph), groups


def propose(module, groups):
    partitioner = GroupBasedPartitioner(
        module, Marked(), node_groups=groups, allows_single_node_partition=True
    )
    return [(each.id, list(each.nodes)) for each in partitioner.propose_partitions()]


@pytest.mark.parametrize(
    "count",
    [
        100,
        pytest.param(600, marks=pytest.mark.slow),
        pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.release]),
    ],
)
def test_partitions_are_those_that_trying_all_pairs_gives(count):
    merged = 0
    for seed in range(count):
        module, groups = make_random_graph(seed)
        plain = propose(module, groups)
        with fast_lowering():
            assert propose(module, groups) == plain, f"seed {seed}"
        merged += sum(len(nodes) > 2 for _, nodes in plain)
    assert merged > count  # otherwise nothing was tried


def test_a_partitioner_with_a_rule_of_its_own_keeps_it():
    class Never(GroupBasedPartitioner):
        def _can_merge_partitions(self, *args):
            return False

    module, _ = make_random_graph(1)
    for node in module.graph.nodes:
        node.meta["supported"] = node.op == "call_function"
    with fast_lowering():
        partitioner = Never(
            module,
            Marked(),
            node_groups=[[node] for node in module.graph.nodes],
            allows_single_node_partition=True,
        )
        partitions = partitioner.propose_partitions()
    assert len(partitions) > 1 and all(each.size() == 1 for each in partitions)


class Products(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weights = torch.nn.ParameterList(torch.randn(4, 4) for _ in range(4))
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        for weight in self.weights:
            x = x @ weight
        return self.linear(x.cumsum(0))


def tags_of(program):
    XnnpackPartitioner().partition(program)
    return [node.meta.pop("delegation_tag", None) for node in program.graph.nodes]


def test_linear_layers_are_found_once_for_all_products(monkeypatch):
    calls = []
    find = gemm_configs.get_source_partitions
    program = export(Products().requires_grad_(False), (torch.ones(3, 4),))
    edge = to_edge(program).exported_program()
    plain = tags_of(edge)
    with fast_lowering():
        monkeypatch.setattr(
            gemm_configs, "get_source_partitions", lambda *args: calls.append(args) or find(*args)
        )
        assert tags_of(edge) == plain
    assert len(calls) == 1 and len(set(plain)) > 2
