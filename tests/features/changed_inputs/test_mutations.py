"""A program's mutations, as found from its operators, match those from functionalizing it."""

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.features.changed_inputs.mutations import UncertainError, find_changed_specs
from pipeline.program.eager import find_effects, functionalized, read_effects

X = torch.ones(2, 4)


class Changing(nn.Module):
    """Changes two buffers, a parameter and an input, as `change` selects."""

    def __init__(self, change):
        super().__init__()
        self.change = change
        self.weight = nn.Parameter(torch.ones(2, 4), requires_grad=False)
        self.register_buffer("second", torch.zeros(2, 4))
        self.register_buffer("first", torch.zeros(2, 4))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        y = x * 2 + self.weight + self.second + self.first
        changed = self.change(self, x)
        return (y, x + 1) if changed is None else (y, changed)


def both_buffers(module, x):
    module.first.add_(1)
    module.second[:, 1:].copy_(x[:, 1:])


def input_and_parameter(module, x):
    module.weight.mul_(2)
    x.transpose(0, 1)[1].add_(1)


def result_of_change(module, x):
    module.first.index_copy_(0, torch.tensor([1]), x[:1]).unsqueeze(0).neg_()
    return x.clone()


def part_of_split(module, x):
    module.first.split(2, dim=1)[1].add_(1)
    module.second.chunk(2)[0].zero_()


def new_values(module, x):
    nn.functional.linear(x, module.weight).relu_()
    return (x + 1).add_(1)


CERTAIN = (both_buffers, input_and_parameter, result_of_change, part_of_split, new_values)


def dropout(module, x):
    nn.functional.dropout(module.first, 0.5, training=False).add_(1)


def reshaped(module, x):
    module.first.reshape(8).add_(1)


def same_type(module, x):
    module.first.type_as(x).add_(1)


def batch_norm(module, x):
    module.first.add_(1)
    return module.norm.train()(x)


def replaced(module, x):
    module.first.add_(1)
    return (x + 1).resize_(4, 2)


def branch(module, x):
    module.first.add_(1)
    return torch.cond(x.sum() > 0, lambda y: y.clone().add_(1), lambda y: y + 2, (x,))


def foreign(module, x):
    torch.ops.llama.update_cache(x.view(1, 1, 2, 4), module.first.view(1, 1, 2, 4), 0)


UNCERTAIN = (dropout, reshaped, same_type, batch_norm, replaced, branch, foreign)


@pytest.mark.parametrize("change", [*CERTAIN, *UNCERTAIN], ids=lambda change: change.__name__)
def test_the_walk_finds_what_functionalizing_finds(change):
    from pipeline.program.operator_libraries import register_operators

    register_operators(["llama.update_cache.default"])
    program = export(Changing(change).eval(), (X.clone(),))
    effects, expected = find_effects(program), read_effects(functionalized(program))
    assert effects.state == expected.state
    assert effects.changed == expected.changed
    described = [(name, value.dtype, value.shape) for name, value in effects.outputs]
    assert described == [(name, value.dtype, value.shape) for name, value in expected.outputs]
    if change in CERTAIN:
        assert [spec.target for spec in find_changed_specs(program) if spec.target] == [
            *expected.state
        ]
    else:
        with pytest.raises(UncertainError):
            find_changed_specs(program)


def test_a_change_of_two_names_for_one_memory_is_left_to_torch():
    module = Changing(both_buffers)
    program = export(module.eval(), (X.clone(),))
    program.state_dict["first"] = program.state_dict["second"]
    with pytest.raises(UncertainError):
        find_changed_specs(program)
