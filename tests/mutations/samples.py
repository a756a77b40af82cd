"""Small packages to be damaged, each with the programs that it was made from.

Together they contain everything in which a package can be wrong: constants in the `.pte` and in a
`.ptd`, weights that delegates share, payloads, quantization at the borders of delegates and inside
them, state, branches, layouts, and methods that look alike from outside. Their weights are the same
in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import executorch.kernels.quantized  # noqa: F401  its out variants, which lowering asks for
import torch
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch.export import Dim, ExportedProgram, export

from pipeline.backends import make_partitioners
from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.config.emission import EmitConfig
from pipeline.config.validation import ValidateConfig
from pipeline.features.instructions.emit_trace import Emission, record_emission
from pipeline.features.quantization.quantize import quantize
from pipeline.program.inputs import InputSet
from tests.support.configs import parse_config


@dataclass(frozen=True)
class Files:
    """A package in memory; `ptds` is keyed by the stem of each file. `emission` was recorded when
    the undamaged package was made."""

    pte: bytes
    ptds: Mapping[str, bytes] = field(default_factory=dict)
    emission: Emission | None = None


@dataclass(frozen=True)
class Sample:
    """An undamaged package. `limits` are the config's settings under `validate`, and `quantized`
    are the programs that were lowered instead of `programs`. If it `shares_state`, methods run in
    sequence on the same memory."""

    files: Files
    programs: Mapping[str, ExportedProgram]
    constants: Mapping[str, Any] = field(default_factory=dict)
    examples: Mapping[str, list[InputSet]] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    quantized: Mapping[str, ExportedProgram] = field(default_factory=dict)
    shares_state: bool = False
    dynamic: bool = False  # quantized with ranges determined at run time

    def settings(self, seed: int) -> ValidateConfig:
        return ValidateConfig(seed=seed, **self.limits)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _exported(module: nn.Module, *args: Any, shapes: Any = None) -> ExportedProgram:
    return export(module.eval().requires_grad_(False), args, dynamic_shapes=shapes)


def _packed(
    programs: Mapping[str, ExportedProgram],
    partitioners: Mapping[str, list[str]],
    constants: Mapping[str, Any] | None = None,
    settings: EmitConfig | None = None,
    passes: Any = (),
) -> Files:
    """Build a package of these methods, given the names of their partitioners."""
    methods = {name: {"partitioners": partitioners.get(name, [])} for name in programs}
    config = parse_config("p", {"model": "m", "methods": methods}, "p.yaml").methods
    chosen = {name: make_partitioners(each.partitioners) for name, each in config.items()}
    lowered = lower(programs, chosen, constants)
    with record_emission() as emission:
        manager = emit(lowered, settings, passes)
    tensors = {stem: bytes(data) for stem, data in manager._tensor_data.items()}
    return Files(bytes(manager.buffer), tensors, emission)


class Encode(nn.Module):
    """Several outputs, two of them alike; subtraction and division, where order matters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.tensor([0.5, 1.5, -2.0, 0.25, 1.0, -1.0]))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = torch.relu(self.first(x))
        z = torch.tanh(self.second(h) * self.scale) - h
        return {"hidden": h, "code": z, "weights": torch.softmax(z, -1).sum(0)}


class Decode(nn.Module):
    def __init__(self, encode: Encode) -> None:
        super().__init__()
        self.second = encode.second
        self.head = nn.Linear(6, 4)

    def forward(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mixed = (y - z) / (1.5 + torch.abs(z))
        return self.head(torch.relu(self.second(mixed)))


def _coder() -> dict[str, ExportedProgram]:
    encode = Encode()
    rows = Dim("rows", min=2, max=6)
    return {
        "encode": _exported(encode, noise(3, 4), shapes=({0: rows},)),
        "decode": _exported(
            Decode(encode), noise(3, 6), noise(3, 6), shapes=({0: rows}, {0: rows})
        ),
    }


def portable() -> Sample:
    """Portable kernels only; constants that two methods share; constant methods."""
    programs, constants = _coder(), {"get_length": 6, "get_rate": 0.5}
    return Sample(_packed(programs, {}, constants), programs, constants)


def delegated() -> Sample:
    """XNNPACK in several partitions per method, which share weights."""
    programs = {n: _exported(m, *x) for n, m, x in _interrupted()}
    return Sample(_packed(programs, {name: ["xnnpack"] for name in programs}), programs)


class Interrupted(nn.Module):
    """Delegates before and after an operator that XNNPACK doesn't take."""

    def __init__(self, shared: nn.Linear, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.shared, self.own = shared, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cumsum(torch.relu(self.shared(x)) - x, 1)
        return torch.sigmoid(self.own(y)) - self.shared(y)


def _interrupted() -> list[tuple[str, nn.Module, tuple[torch.Tensor, ...]]]:
    torch.manual_seed(3)
    shared = nn.Linear(8, 8)
    return [
        ("features", Interrupted(shared, 4), (noise(3, 8),)),
        ("rank", Interrupted(shared, 5), (noise(3, 8, seed=1),)),
    ]


class Twin(nn.Module):
    """A whole method for a delegate, with the same signature as the other one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * 0.5 - y


def twins() -> Sample:
    """Two methods with the same signature, both taken whole by XNNPACK, and a constant method."""
    programs = {
        name: _exported(Twin(seed), noise(2, 6), noise(2, 6, seed=1))
        for name, seed in (("left", 7), ("right", 8))
    }
    partitioners = {name: ["xnnpack"] for name in programs}
    constants = {"get_flags": [True, 3]}
    return Sample(_packed(programs, partitioners, constants), programs, constants)


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + self.down(torch.relu(self.up(x))))


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(10)
        self.conv, self.out = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.conv(x)).mean((2, 3)))


@cache
def quantized_programs(
    dynamic: bool,
) -> tuple[dict[str, ExportedProgram], dict[str, ExportedProgram]]:
    """Return the float programs and their quantized versions."""
    shapes = {"text": (4, 16)} if dynamic else {"text": (4, 16), "image": (1, 3, 8, 8)}
    modules: dict[str, nn.Module] = {"text": Text(), "image": Image()}
    programs = {name: _exported(modules[name], noise(*shape)) for name, shape in shapes.items()}
    options = {"quantizer": "xnnpack", "per_channel": True, "dynamic": dynamic}
    method = {"partitioners": [], "quantize": options}
    spec = parse_config("p", {"model": "m", "methods": {"f": method}}, "p.yaml")
    quantized = {}
    for name, program in programs.items():
        # A wider range than in validation, so that nothing is clipped.
        batches = [InputSet((noise(*shapes[name], seed=seed) * 1.5,)) for seed in range(30, 94)]
        quantize_spec = spec.methods["f"].quantize
        assert quantize_spec is not None
        quantized[name] = quantize(program, quantize_spec, [] if dynamic else batches)
    return programs, quantized


def _eight_bits(dynamic: bool, partitioners: list[str]) -> Sample:
    """Return a sample judged against the float programs, as by `doit validate`.

    Its tolerances are what a person would choose: slightly above the errors of undamaged packages.
    """
    programs, quantized = quantized_programs(dynamic)
    files = _packed(quantized, dict.fromkeys(programs, partitioners))
    own = {"text": {"atol": 0.02}} if dynamic else {"text": {"atol": 0.3}, "image": {"atol": 0.02}}
    limits = {"rtol": 0.0, "min_sqnr": 18.0, "methods": own}
    return Sample(files, programs, limits=limits, quantized=quantized)


def static() -> Sample:
    """int8, quantized and dequantized at the borders of its delegates, without limits."""
    return replace(_eight_bits(False, ["xnnpack"]), limits={})


def sixteen_bits() -> Sample:
    """float16 on XNNPACK and bfloat16 on portable kernels, without limits."""
    text = {name: Text() for name in ("fast", "brain")}
    dtypes = {"fast": torch.float16, "brain": torch.bfloat16}
    programs = {
        name: _exported(module.to(dtypes[name]), noise(4, 16).to(dtypes[name]))
        for name, module in text.items()
    }
    return Sample(_packed(programs, {"fast": ["xnnpack"]}), programs)


def static_portable() -> Sample:
    """int8 without a delegate: every scale and zero point is an operator's argument."""
    return _eight_bits(False, [])


def dynamic() -> Sample:
    """int8 weights with scales per channel, and dynamically quantized activations."""
    return _eight_bits(True, ["xnnpack"])


class Memory(nn.Module):
    """A cache like those of language models, and a count that doesn't start at zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.key, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(8, 4))
        self.register_buffer("count", torch.tensor([3.0]))


class Step(nn.Module):
    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.memory = memory

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        memory = self.memory
        memory.cache.index_copy_(0, position, memory.key(x))
        memory.count.add_(x.shape[0])
        attended = torch.softmax(x @ memory.cache.t(), -1) @ memory.cache
        return memory.out(attended) * memory.count


def _stateful(partitioners: list[str], shares: bool = False) -> Sample:
    memory = Memory()
    programs = {
        "prefill": _exported(Step(memory), noise(4, 4), torch.arange(4)),
        "decode": _exported(Step(memory), noise(1, 4), torch.tensor([4])),
    }
    examples = {
        "prefill": [
            InputSet((noise(4, 4, seed=20 + first), torch.arange(first, first + 4)), {}, name)
            for name, first in (("example 0", 0), ("example 1", 4))
        ],
        "decode": [
            InputSet((noise(1, 4, seed=40 + n), torch.tensor([n])), {}, f"example {n}")
            for n in range(3)
        ],
    }
    settings = EmitConfig(memory_planning={"share_mutable_buffers": shares})
    passes = [InitializedMutableBufferPass(["count"])]
    files = _packed(programs, dict.fromkeys(programs, partitioners), None, settings, passes)
    return Sample(files, programs, examples=examples, shares_state=shares)


def stateful() -> Sample:
    """Portable kernels, with buffers that are written back at the end of each call."""
    return _stateful([])


def stateful_delegated() -> Sample:
    return _stateful(["xnnpack"])


def sharing() -> Sample:
    """Prefill fills the cache that decode reads."""
    return _stateful([], shares=True)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(12)
        self.outside, self.inside = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.outside(x)
        return torch.cond(
            y.sum() > 0, lambda y: torch.relu(self.inside(y)) * 2, lambda y: y / 3 - 1, (y,)
        )


class Rows(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch_map(lambda row, y: row * y - 1, x, y)


def branching() -> Sample:
    """Jumps: a branch, and a loop over rows. The examples take both paths."""
    x = noise(3, 5)
    programs = {
        "branch": _exported(Branches(), x),
        "rows": _exported(Rows(), noise(4, 3), noise(3, seed=1)),
    }
    sets = [InputSet((noise(3, 5, seed=seed),), {}, f"example {seed}") for seed in range(4)]
    return Sample(_packed(programs, {}), programs, examples={"branch": sets})


def external() -> Sample:
    """Like `portable`, with its constants in a `.ptd`."""
    programs = _coder()
    return Sample(_packed(programs, {}, settings=EmitConfig(external_constants=True)), programs)


class Sums(nn.Module):
    """Constants in the text and larger ones in named data."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.register_buffer("few", torch.tensor([step, -2.0, 0.25]))
        self.register_buffer("many", noise(64, 3, seed=13) * step)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = torch.sub(x, self.few, alpha=2) + y
        return torch.relu(total) - y, total + self.many


def add_sub() -> Sample:
    """The add/sub backend, whose delegates the interpreter runs."""
    programs = {
        name: _exported(Sums(step), noise(64, 3), noise(64, 3, seed=1))
        for name, step in (("up", 1.5), ("down", -0.75))
    }
    return Sample(_packed(programs, {name: ["add_sub"] for name in programs}), programs)


class Layout(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.conv(x) - x, m.t() - m * 0.5


def layouts() -> Sample:
    """An image in channels-last order and a square matrix, on portable kernels and XNNPACK."""
    image = noise(1, 3, 6, 6).to(memory_format=torch.channels_last)
    programs = {
        "plain": _exported(Layout(14), noise(1, 3, 6, 6), noise(3, 3)),
        "last": _exported(Layout(15), image, noise(3, 3)),
        "fast": _exported(Layout(16), noise(1, 3, 6, 6), noise(3, 3)),
    }
    return Sample(_packed(programs, {"fast": ["xnnpack"]}), programs)


SAMPLES: dict[str, Callable[[], Sample]] = {
    function.__name__: cache(function)
    for function in (
        portable,
        delegated,
        twins,
        static,
        sixteen_bits,
        static_portable,
        dynamic,
        stateful,
        stateful_delegated,
        sharing,
        branching,
        external,
        add_sub,
        layouts,
    )
}
