"""A partitioner's uptake counts operators by what they compute."""

import pytest
import torch
from executorch.exir import to_edge
from torch import nn
from torch.export import export

from pipeline.backends import BACKENDS, PartitionerSpec
from pipeline.compile.inspect.uptake import measure_uptake
from pipeline.program.graphs import iter_nodes
from pipeline.program.operators import TAG, base_name

SPEC = PartitionerSpec(name="xnnpack", options=BACKENDS["xnnpack"].options())
MOVING = ("view_copy", "permute_copy", "_clone_dim_order")


class Moves(nn.Module):
    def forward(self, x):
        return x.permute(1, 0).reshape(-1).clone()


class Computes(Moves):
    def forward(self, x):
        return super().forward(x).cumsum(0).to(torch.int32)


def measure(module, takes):
    """Return the uptake of a partitioner that takes some operators of a method."""
    program = to_edge(export(module, (torch.ones(2, 3),))).exported_program()
    for node in iter_nodes(program):
        if base_name(node) in takes:
            node.meta[TAG] = "delegate_0"
    return measure_uptake(SPEC, program)


def test_a_delegate_of_views_alone_has_taken_nothing():
    uptake = measure(Computes(), MOVING)
    assert (uptake["offered"], uptake["taken"]) == (2, 0)  # cumsum, and a cast
    assert {refusal["operator"] for refusal in uptake["refusals"]} == {
        "aten.cumsum.default",
        "dim_order_ops._to_dim_order_copy.default",
    }


@pytest.mark.parametrize(("takes", "taken"), [(("cumsum",), 1), (("_to_dim_order_copy",), 1)])
def test_what_computes_counts(takes, taken):
    assert measure(Computes(), (*MOVING, *takes))["taken"] == taken


def test_where_nothing_computes_views_count():
    uptake = measure(Moves(), MOVING)
    assert uptake["offered"] == uptake["taken"] > 0
    assert measure(Moves(), ())["taken"] == 0
