"""Modules whose exports diverge from them, each at a line that ends with `# planted: <name>`.

A function makes each case: the exported program, the reference, the arguments of a call, and the
words that the message about the divergence must contain in addition to the line.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torch.nn import functional as F

FILE = "tests/support/divergences.py"
X = torch.linspace(-2, 2, 8).reshape(2, 4)


@dataclass(frozen=True)
class Planted:
    """A program, a reference that it diverges from, and the arguments of a call.

    Attributes:
        module: the place that the message names, such as `blocks.1 (Block)`.
        words: other text that the message must contain.
    """

    program: ExportedProgram
    reference: Callable[..., Any]
    module: str
    words: tuple[str, ...]
    args: tuple[Any, ...] = (X,)
    kwargs: dict[str, Any] = field(default_factory=dict)


CASES: dict[str, Callable[[], Planted]] = {}


def planted(make: Callable[[], Planted]) -> Callable[[], Planted]:
    CASES[make.__name__] = make
    return make


def planted_line(name: str) -> int:
    """Return the number of the line where a case diverges."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"# planted: {name}")]
    return number


class Model(nn.Module):
    """Two blocks between a first and a last layer."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.blocks = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), block())
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.blocks(self.first(x)))


def model(block: Callable[[], nn.Module]) -> Model:
    return Model(block).eval().requires_grad_(False)


def case(block, kind, *words, between=lambda m: None):
    """Export a model around a block, then let `between` change the model, as the reference."""
    net = model(block)
    program = export(copy.deepcopy(net), (X,))
    between(net)
    return Planted(program, net, f"blocks.1 ({kind})", words)


class ExportFlag(nn.Module):
    def forward(self, x):
        x = x.sin()
        if torch.compiler.is_exporting():  # planted: export_flag
            x = x * 0
        return x + 1


@planted
def export_flag():
    return case(ExportFlag, "ExportFlag", "is_exporting()", "being exported")


class EagerOnly(nn.Module):
    def forward(self, x):
        x = x.sin()
        if not torch.compiler.is_compiling():  # planted: eager_only
            x = x.clamp(min=0.1)
        return x + 1


@planted
def eager_only():
    return case(EagerOnly, "EagerOnly", "is_compiling()", "being exported")


class StoredFlag(nn.Module):
    def forward(self, x):
        fast = torch.compiler.is_exporting()
        if fast:  # planted: stored_flag
            return F.gelu(x, approximate="tanh")
        return F.gelu(x) * 2


@planted
def stored_flag():
    return case(StoredFlag, "StoredFlag", "being exported")


class HelperFlag(nn.Module):
    def forward(self, x):
        return self.scale(x.sin()) + 1

    def scale(self, x):
        if torch.compiler.is_exporting():  # planted: helper_flag
            return x
        return x * 1.5


@planted
def helper_flag():
    return case(HelperFlag, "HelperFlag", "being exported")


class HiddenHelperFlag(nn.Module):
    def forward(self, x):
        return self.scale(x.sin()) + 1

    def scale(self, x):
        if torch.compiler.is_exporting():  # planted: hidden_helper_flag
            x = x * 1.5
        return x


@planted
def hidden_helper_flag():
    """Only the program runs the branch, and it records no source lines of helpers."""
    return case(HiddenHelperFlag, "HiddenHelperFlag", "being exported")


class Ternary(nn.Module):
    def forward(self, x):
        return x.relu() if torch.compiler.is_exporting() else x.abs()  # planted: ternary


@planted
def ternary():
    return case(Ternary, "Ternary", "being exported")


class Factor(nn.Module):
    def forward(self, x):
        return x * (0.5 if torch.compiler.is_exporting() else 2.0)  # planted: factor


@planted
def factor():
    return case(Factor, "Factor", "0.5", "2.0", "being exported")


class ShapeNumber(nn.Module):
    """A number computed from a size on the first call only."""

    def __init__(self):
        super().__init__()
        self.length = None

    def forward(self, x):
        if self.length is None:
            self.length = float(x.shape[0])
        return x.sin() / self.length  # planted: shape_number


@planted
def shape_number():
    net = model(ShapeNumber)
    net(X)
    program = export(net, (X,), dynamic_shapes=({0: Dim("rows", min=2, max=8)},))
    net.blocks[1].length = None
    words = ("2.0 in the program, 4.0 in the reference", "blocks.1.length")
    return Planted(program, net, "blocks.1 (ShapeNumber)", words, (torch.cat([X, X + 1]),))


class Flag(nn.Module):
    wide = False

    def forward(self, x):
        if self.wide:  # planted: flag
            x = x.tanh()
        return x.sin()


@planted
def flag():
    def switch(net):
        net.blocks[1].wide = True

    return case(Flag, "Flag", "if self.wide:", "at the time of the export", between=switch)


class Steps(nn.Module):
    steps = 2

    def forward(self, x):
        for _ in range(self.steps):  # planted: steps
            x = x.sin() + 0.5
        return x


@planted
def steps():
    def more(net):
        net.blocks[1].steps = 4

    return case(Steps, "Steps", "2 times in the program, 4 times in the reference", between=more)


class Seed(nn.Module):
    def forward(self, x):
        return x.sin() * random.random()  # planted: seed


@planted
def seed():
    return case(Seed, "Seed", "random number")


class NumpyNoise(nn.Module):
    def forward(self, x):
        noise = torch.from_numpy(np.random.rand(4).astype("float32"))  # planted: numpy_noise
        return x.sin() + noise


@planted
def numpy_noise():
    return case(NumpyNoise, "NumpyNoise", "constant", "random number")


class DataBranch(nn.Module):
    """A branch on data: tracing takes the other side, since a traced tensor has no values."""

    def forward(self, x):
        x = x.sin()
        try:
            large = bool((x.abs() > 0.5).any())
        except Exception:
            large = False
        if large:  # planted: data_branch
            x = x / 2
        return x + 1


@planted
def data_branch():
    return case(DataBranch, "DataBranch", "tensor values", "torch.where")


class ItemValue(nn.Module):
    def forward(self, x):
        x = x.sin()
        try:
            peak = x.abs().max().item()
            peak = float(peak)
        except Exception:
            peak = 1.0
        return x * peak  # planted: item_value


@planted
def item_value():
    return case(ItemValue, "ItemValue", "read from a tensor")


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(x.sin()) + 1  # planted: dropout


@planted
def dropout():
    case_ = case(Dropped, "Dropped", "training mode", "reference", between=lambda net: net.train())
    return Planted(case_.program, case_.reference, "blocks.1.drop (Dropout)", case_.words)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(x.sin())  # planted: batch_norm


@planted
def batch_norm():
    net = model(Normed).train()
    program = export(net, (X,))
    words = ("exported in training mode", ".eval()")
    return Planted(program, net.eval(), "blocks.1.norm (BatchNorm1d)", words)


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=not torch.compiler.is_exporting()):
            return self.fc(x.sin()).float()  # planted: autocast


@planted
def autocast():
    planted = case(Half, "Half", "autocast computes in bfloat16")
    return Planted(planted.program, planted.reference, "blocks.1.fc (Linear)", planted.words)


class Made(nn.Module):
    def forward(self, x):
        table = torch.linspace(0, 1, 4)  # planted: default_dtype
        return (x.sin() * table).float()


@planted
def default_dtype():
    net = model(Made)
    program = export(net, (X,))

    def run(x):
        torch.set_default_dtype(torch.float64)
        try:
            return net(x)
        finally:
            torch.set_default_dtype(torch.float32)

    return Planted(program, run, "blocks.1 (Made)", ("float32 in the program, float64",))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)  # planted: weights


@planted
def weights():
    def load(net):
        net.blocks[1].fc.weight = nn.Parameter(net.blocks[1].fc.weight * 1.1)

    made = case(Plain, "Plain", "parameter 'blocks.1.fc.weight'", "export again", between=load)
    return Planted(made.program, made.reference, "blocks.1.fc (Linear)", made.words)


class Offset(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("offset", torch.zeros(4))

    def forward(self, x):
        return x + self.offset  # planted: buffer


@planted
def buffer():
    def move(net):
        net.blocks[1].offset = torch.ones(4)

    return case(Offset, "Offset", "buffer 'blocks.1.offset'", between=move)


class HalfWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x.to(self.fc.weight.dtype)).float()  # planted: half_weights


@planted
def half_weights():
    def convert(net):
        net.blocks[1].half()

    words = ("float32 in the program", "float16 in the reference")
    made = case(HalfWeights, "HalfWeights", *words, between=convert)
    return Planted(made.program, made.reference, "blocks.1", made.words)


@planted
def preprocessing():
    net = model(Plain)

    def run(x):
        x = (x - 0.5) / 0.25  # planted: preprocessing
        return net(x)

    return Planted(export(net, (X,)), run, "", ("transforms its inputs before it calls Model",))


@planted
def postprocessing():
    net = model(Plain)

    def run(x):
        return net(x).softmax(-1)  # planted: postprocessing

    return Planted(export(net, (X,)), run, "", ("after calling Model",))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x.sin() * self.calls  # planted: counter


@planted
def counter():
    words = "sets 'blocks.1.calls' in Python"
    return case(Counter, "Counter", words, between=lambda net: net(X))


class CachedMask(nn.Module):
    """A tensor that the first call creates and later calls reuse."""

    def __init__(self):
        super().__init__()
        self.mask = None

    def forward(self, x):
        x = x.sin()
        if self.mask is None:
            self.mask = x.detach().abs()
        return x + self.mask  # planted: cached


@planted
def cached():
    net = model(CachedMask)
    program = export(copy.deepcopy(net), (X,))
    net(X * 3)
    return Planted(program, net, "blocks.1 (CachedMask)", ("tensor 'blocks.1.mask'",))


class Lifted(nn.Module):
    scale = 0.5

    def forward(self, x):
        return x.sin() * torch.tensor([self.scale, 1.0, 1.0, 1.0])  # planted: lifted


@planted
def lifted():
    def rescale(net):
        net.blocks[1].scale = 0.75

    return case(Lifted, "Lifted", "constant", between=rescale)


class Hooked(nn.Module):
    def forward(self, x):
        return x.sin()


@planted
def hook():
    net = model(Hooked)
    program = export(net, (X,))

    def double(module, args, output):
        return output * 2  # planted: hook

    net.blocks[1].register_forward_hook(double)
    return Planted(program, net, "blocks.1 (Hooked)", ("aten.mul.Tensor",))


class Replaced(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(x)  # planted: replaced


@planted
def replaced():
    def swap(net):
        net.blocks[1].act = nn.GELU()

    made = case(Replaced, "Replaced", "aten.gelu", "aten.relu", between=swap)
    return Planted(made.program, made.reference, "blocks.1.act (GELU)", made.words)


class State(nn.Module):
    """The reference writes the state that the next call reads; the program doesn't."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 4))

    def forward(self, x):
        out = x + self.total
        self.total.copy_(out * (1 if torch.compiler.is_exporting() else 2))  # planted: state
        return out


@planted
def state():
    return case(State, "State", "being exported")


class Zeroed(nn.Module):
    def forward(self, x):
        y = x.sin()
        if torch.compiler.is_exporting():  # planted: early_return
            return torch.zeros_like(y)
        return y.cos()


@planted
def early_return():
    return case(Zeroed, "Zeroed", "being exported")


class Switch(nn.Module):
    """A flag in a property decides which module gets the input."""

    def __init__(self):
        super().__init__()
        self.small, self.large = nn.Linear(4, 4), nn.Linear(4, 4)
        self.mode = "small"

    @property
    def is_small(self):
        return self.mode == "small"

    def forward(self, x):
        if self.is_small:  # planted: chosen_module
            return self.small(x)
        return self.large(x)


@planted
def chosen_module():
    def switch(net):
        net.blocks[1].mode = "large"

    return case(Switch, "Switch", "if self.is_small:", "at the time of the export", between=switch)


TOTAL = 1.0


class Global(nn.Module):
    def forward(self, x):
        global TOTAL
        TOTAL += 1
        return x.sin() * TOTAL  # planted: global_number


@planted
def global_number():
    return case(Global, "Global", "in the reference", between=lambda net: net(X))


class Epsilon(nn.Module):
    eps = 1e-5

    def forward(self, x):
        return F.layer_norm(x, (4,), eps=self.eps)  # planted: epsilon


@planted
def epsilon():
    """The change is too small to tell from rounding by the outputs alone."""

    def change(net):
        net.blocks[1].eps = 1.1e-5

    return case(Epsilon, "Epsilon", "eps is 1e-05", "1.1e-05 in the reference", between=change)


class Wrapper(nn.Module):
    """A wrapper that is exported, which prefixes the names of all weights."""

    def __init__(self, net):
        super().__init__()
        self.model = net

    def forward(self, x):
        return self.model(x)


@planted
def wrapped_weights():
    net = model(WrappedPlain)
    program = export(Wrapper(copy.deepcopy(net)), (X,))
    net.blocks[1].fc.bias = nn.Parameter(net.blocks[1].fc.bias + 1)
    words = ("parameter 'model.blocks.1.fc.bias'", "export again")
    return Planted(program, net, "blocks.1.fc (Linear)", words)


class WrappedPlain(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)  # planted: wrapped_weights


@planted
def numpy_preprocessing():
    net = model(Plain)

    def run(x):
        x = torch.from_numpy(x.numpy() * 2)  # planted: numpy_preprocessing
        return net(x)

    return Planted(export(net, (X,)), run, "", ("outside PyTorch",))


class Masked(nn.Module):
    """The program adds an argument's default; the reference has another default."""

    def forward(self, x, scale: float = 1.0):
        if scale != 1.0:  # planted: default_argument
            x = x * scale
        return x.sin()


@planted
def default_argument():
    net = model(Masked)
    program = export(copy.deepcopy(net), (X,))
    inner = net.blocks[1]

    def forward(x):
        return Masked.forward(inner, x, 3.0)

    inner.forward = forward
    return Planted(program, net, "blocks.1 (Masked)", ("if scale != 1.0:",))


class Resized(nn.Module):
    """Positions created for the length of the example."""

    def __init__(self):
        super().__init__()
        self.rows = 2

    def forward(self, x):
        last = x[self.rows - 1]  # planted: frozen_row
        return x.sin() + last


@planted
def frozen_row():
    net = model(Resized)
    program = export(net, (X,), dynamic_shapes=({0: Dim("rows", min=2, max=8)},))
    net.blocks[1].rows = 4
    words = ("index is 1 in the program, 3 in the reference",)
    return Planted(program, net, "blocks.1 (Resized)", words, (torch.cat([X, X + 1]),))


class Retyped(nn.Module):
    def forward(self, x):
        dtype = torch.float32 if torch.compiler.is_exporting() else torch.float16
        return x.sin().to(dtype).float()  # planted: retyped


@planted
def retyped():
    return case(Retyped, "Retyped", "being exported")


class Wide(nn.Module):
    """Weights so large that their views aren't read a second time."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 300), nn.Linear(300, 300)

    def forward(self, x):
        x = self.up(x)
        x = x * (1 if torch.compiler.is_exporting() else 2)  # planted: wide
        return F.linear(self.down(x), self.up.weight.t())


@planted
def wide():
    return case(Wide, "Wide", "being exported")
