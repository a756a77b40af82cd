"""The values of a program's nodes match those of a run, including bodies of control flow."""

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan

from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.validate.node_values import MOST_VISITS, NodeValues
from tests.devices.test_bindings import exported

V = torch.tensor([[1.0, -2.0], [3.0, 4.0], [5.0, 6.0]])


class Branch(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: (y.sin(),), lambda y: (y.cos(),), (x,))[0] * 2


class Rows(nn.Module):
    def forward(self, x):
        return map_rows(lambda row: row.sin(), x) * 2


class Sums(nn.Module):
    def forward(self, x):
        total = torch.zeros(2)
        return scan(lambda kept, row: (kept + row, row.sin()), total, x)[1] * 2


def values_of(values, name):
    (place,) = [p for p, node in enumerate(values.nodes) if f"{name}.default" in str(node.target)]
    return values.values[place]


@pytest.mark.parametrize(("model", "visits"), [(Branch, 1), (Rows, 3), (Sums, 3)])
def test_values_in_control_flow(model, visits):
    program = exported(model(), V)
    values = NodeValues(program)
    (given,) = values.call([V])
    assert torch.equal(given, Source(program).run(InputSet((V,)))[0])
    seen = values_of(values, "sin")
    assert len(seen) == visits
    wanted = V if model is Branch else V[0]
    assert torch.equal(seen[0], wanted.sin())


def test_a_loop_that_goes_on_is_not_kept_whole():
    rows = torch.ones(MOST_VISITS + 1, 2)
    values = NodeValues(exported(Rows(), rows))
    values.call([rows])
    assert len(values_of(values, "sin")) == MOST_VISITS
    assert values.left_out


def test_parameters_and_inputs_have_values_too():
    net = nn.Linear(2, 2)
    values = NodeValues(exported(net, V))
    values.call([V])
    names = [node.name for node in values.nodes if node.op == "placeholder"]
    seen = {values.nodes[place].name: each[0] for place, each in values.values.items()}
    assert set(names) <= seen.keys()
    assert torch.equal(seen["p_weight"], net.weight.detach())
    assert torch.equal(seen[names[-1]], V)
    assert values.call([V], ()) and not values.values
