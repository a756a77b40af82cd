"""Programs that compute the same as their references: none diverges, and nothing is changed."""

import importlib
import random
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from pipeline.features.divergences.reference_divergence import locate_divergence
from pipeline.features.passes.loading import package_of
from pipeline.program.inputs import InputSet
from tests.support.matrix import in_tiers

ROOT = Path(__file__).parents[3]
X = torch.linspace(-2, 2, 8).reshape(2, 4)


def describe(program, reference, inputs):
    """Describe a divergence, but let errors through: here they would look like agreement."""
    return locate_divergence(program, reference, inputs, ROOT)


class Cond(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: (y.sin(),), lambda y: (y.cos(),), (x,))[0] * 2


class Views(nn.Module):
    def forward(self, x):
        y = x.clone()
        y[:, 1:3].mul_(2)
        y.t()[0].add_(1)
        z = torch.zeros(2, 4)
        z[:, ::2] = y[:, 1::2]
        return z, y.view(4, 2)[1]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)
        self.head.weight = self.fc.weight

    def forward(self, x):
        return self.head(self.fc(x).relu())


class Wide(nn.Module):
    """Weights so large that their views aren't read a second time."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 300), nn.Linear(300, 300)

    def forward(self, x):
        x = self.down(self.up(x)) @ self.down.weight[:, :4]
        return F.linear(x, self.down.weight[1:5].t()[:4])


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(self.fc(x).tanh())


class Nested(nn.Module):
    def forward(self, x, *, scale, more):
        return {"a": x * scale, "b": [more["y"] + 1, (x.sum(), 3, None)]}


class State(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x):
        self.total.add_(x)
        self.count = self.count + 1
        return self.total / self.count


class InPlace(nn.Module):
    def forward(self, x):
        x.add_(1)
        return x.relu()


class Complex(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x).abs(), torch.view_as_real(torch.complex(x, -x)).sum(-1)


class NotFinite(nn.Module):
    def forward(self, x):
        mask = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
        return (x @ x.t()).log(), (mask + 1).softmax(-1) @ x.t()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x[None], x[None], x[None])[0]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x):
        return self.lstm(x[None])


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = parametrizations.weight_norm(nn.Linear(4, 4))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return F.dropout(self.norm(self.fc(x)), training=self.training)


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4).to(torch.bfloat16)

    def forward(self, x):
        return self.fc(x.bfloat16()).float().argmax(-1), F.layer_norm(x, (4,))


class Empty(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        y.copy_(x * 2)
        return y, x[:, :0]


CASES = {
    kind.__name__: kind
    for kind in (
        *(Cond, Views, Tied, Twice, State, InPlace, Complex, NotFinite, Attention, Recurrent),
        *(Normed, Halves, Empty, Wide),
    )
}


ROUNDED = {("Recurrent", True)}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("decomposed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_agrees(name, decomposed):
    torch.manual_seed(0)
    module = CASES[name]().eval()
    program = export(module, (X,))
    if decomposed:
        program = program.run_decompositions()
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    given = X.clone()
    sentence = describe(program, module, InputSet((given,)))
    # A decomposed LSTM consists of other operators than oneDNN's.
    assert "rounding explains" in sentence if (name, decomposed) in ROUNDED else sentence == ""
    assert torch.equal(given, X)
    for key, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[key]), key


def test_dynamic_sizes():
    module = Twice().eval()
    program = export(module, (X,), dynamic_shapes=({0: Dim("rows", min=2, max=8)},))
    assert describe(program, module, InputSet((torch.cat([X, X * 2]),))) == ""


def test_keywords_and_nested_outputs():
    kwargs = {"scale": torch.tensor(2.0), "more": {"y": X}}
    program = export(Nested(), (X,), kwargs)
    assert describe(program, Nested(), InputSet((X,), kwargs)) == ""
    assert describe(program, lambda x, **rest: Nested()(x, **rest), InputSet((X,), kwargs)) == ""


class Busy(nn.Module):
    """Changes everything that a call can change."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.weight = nn.Parameter(torch.ones(4))
        self.norm = nn.BatchNorm1d(4)
        self.log, self.cache, self.table = [], {"key": torch.zeros(2, 4)}, torch.ones(4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.new = 3
        self.log.append(x)
        self.cache["key"].add_(x)
        self.cache["other"] = x
        self.table.mul_(2)
        with torch.no_grad():
            self.weight.add_(1)
        self.total = self.total + 1
        self.train()
        random.random()
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        return self.norm(x) + torch.randn(4) * self.table * self.weight


def test_nothing_is_changed():
    module = Busy().eval()
    program = export(Twice(), (X,))
    module.register_forward_hook(hook := lambda *_: None)
    key, total = module.cache["key"], module.total
    torch.manual_seed(1)
    random.seed(1)
    states = torch.get_rng_state(), random.getstate()
    attributes = {k: v for k, v in vars(module).items() if not k.startswith("_")}
    assert describe(program, module, InputSet((X,))) != ""
    assert {k: v for k, v in vars(module).items() if not k.startswith("_")} == attributes
    assert not module.training and not module.norm.training and module.log == []
    assert module.cache == {"key": key} and not key.any() and module.total is total
    assert torch.equal(module.weight, torch.ones(4)) and module.weight.requires_grad
    assert torch.equal(module.table, torch.ones(4)) and not total.any()
    assert not module.norm.running_mean.any() and module.norm.num_batches_tracked == 0
    assert list(module._forward_hooks.values()) == [hook]
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert torch.get_default_dtype() is torch.float32 and torch.is_grad_enabled()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    in_tiers(
        ["add_sub", "language_model", "router", "seq2seq", "speech", "vision"],
        ["language_model", "router"],
    ),
)
def test_models_of_this_repository(name):
    with package_of(ROOT / "models"):  # hides them from later tests
        model = importlib.import_module(f"models.{name}")
        for method, (program, module) in model.export_methods().items():
            for example in model.example_inputs(method)[:2]:
                pair = example if isinstance(example[-1], dict) else (example, {})
                inputs = InputSet(*pair)
                assert describe(program, module, inputs) == ""
