"""Which outputs depend on the values of inputs, judging by the graph."""

import torch
from torch import nn
from torch.export import Dim, export

from pipeline.features.unjudged.dependence import find_dependences
from pipeline.program.eager import Source


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x, y):
        self.count.add_(1)
        y.add_(1)
        branch = torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,))
        return {
            "values": (x.relu(), self.count * 2, branch, x[:0], x * 0),
            "sizes": (torch.zeros_like(x), torch.arange(x.shape[0]), x.shape[0]),
            "nothing": (self.weight * 2, torch.ones(3), y.new_zeros(2), 5, None),
        }


def test_outputs_depend_on_values_on_sizes_or_on_nothing():
    shapes = ({0: Dim("n", min=2, max=9)}, None)
    program = export(Mixed(), (torch.randn(4, 3), torch.randn(2)), dynamic_shapes=shapes)
    source = Source(program)
    found = find_dependences(program, len(source.outputs), source.state)
    names = [name for name, _ in source.outputs]
    assert (names[0], found[0]) == ("input 'y' after the call", "values")
    assert len(names) == 14
    for name, dependence in list(zip(names, found, strict=True))[1:]:
        assert f"'{dependence}'" in name


def test_without_its_state_an_output_depends_on_nothing():
    program = export(Mixed(), (torch.randn(4, 3), torch.randn(2)))
    names = [name for name, _ in Source(program).outputs]
    found = dict(zip(names, find_dependences(program, len(names), ()), strict=True))
    assert found["output['values'][1]"] == "nothing"
    assert found["output['sizes'][0]"] == "nothing"  # its size was fixed by the export


class Overwritten(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("zeroed", "filled", "copied"):
            self.register_buffer(name, torch.ones(3))

    def forward(self, x):
        self.zeroed.zero_()
        self.filled.fill_(2.0)
        self.copied.copy_(x)
        return self.zeroed * 1, self.filled * 1, self.copied * 1


def test_overwritten_state_depends_only_on_what_overwrites_it():
    program = export(Overwritten(), (torch.randn(3),))
    state = Source(program).state
    assert find_dependences(program, 3, state) == ["nothing", "nothing", "values"]
