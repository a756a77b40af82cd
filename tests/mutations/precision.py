"""`python -m tests.mutations.precision [--seeds N] [--only PATTERN] [--no-faults]`: many small
packages in reduced precision, each validated as it is and with faults, under the limits that
validation derives.

It prints every correct package that fails, and every fault that passes; then, by precision, how
many packages there were, how many correct ones failed, and how many of the injected faults that
change any bit of an output were caught. An hour or two for all of it; `--only 'deep/*'` is one
model, `--only '*/fp16'` one precision.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import partial
from typing import Any

import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from torch import nn
from torch.export import ExportedProgram, export
from torchao.quantization.granularity import PerGroup
from torchao.quantization.pt2e import move_exported_model_to_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig, quantize_
from torchao.utils import unwrap_tensor_subclass

from pipeline.compile.quantize import quantize
from pipeline.program.inputs import InputSet
from tests.support.configs import parse_config

from .samples import SAMPLES, Sample, _packed, noise

Inputs = Callable[[int], tuple[torch.Tensor, ...]]  # of a seed
_BATCHES = range(100, 116)


class Stack(nn.Module):
    """Layers one after another, with names that do not begin with a digit: XNNPACK's
    FuseBatchNormPass fails on those."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def _conv_bn(given: int, made: int, **options: Any) -> list[nn.Module]:
    norm = nn.BatchNorm2d(made)
    assert norm.running_mean is not None and norm.running_var is not None
    norm.running_mean.normal_(0, 0.2)
    norm.running_var.uniform_(0.5, 1.5)
    return [nn.Conv2d(given, made, 3, padding=1, **options), norm, nn.ReLU()]


class Recurrent(nn.Module):
    """A cell like that of an LSTM, unrolled over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(32, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros_like(x[:, 0])
        for step in range(4):
            i, f, g, o = self.gates(torch.cat([x[:, step], h], -1)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(32), nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) * 8**-0.5, -1)
        return x + self.out((weights @ v).transpose(1, 2).flatten(2))


class Residual(nn.Module):
    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        self.first = nn.Sequential(*_conv_bn(channels, channels))
        self.second = nn.Sequential(*_conv_bn(channels, channels)[:2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(self.first(x)))


class Mlp(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def _image(*shape: int) -> Inputs:
    return lambda seed: (noise(*shape, seed=seed),)


def _tokens(seed: int) -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 50, (2, 6), generator=torch.Generator().manual_seed(seed)),)


def _depthwise() -> nn.Module:
    deep = _conv_bn(16, 16, groups=16, stride=2)
    return Stack(*_conv_bn(3, 16), *deep, nn.Conv2d(16, 24, 1), nn.ReLU6(), nn.Conv2d(24, 8, 1))


def _convolution() -> nn.Module:
    layers = nn.Conv2d(3, 12, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(12, 8, 3)
    return Stack(*layers, nn.Flatten(), nn.Linear(72, 10))


MODELS: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "small": (lambda: nn.Linear(8, 3), _image(1, 8)),
    "linear": (
        lambda: Stack(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)),
        _image(4, 32),
    ),
    "convolution": (_convolution, _image(1, 3, 12, 12)),
    "conv_bn_relu": (lambda: Stack(*_conv_bn(3, 12), *_conv_bn(12, 12)), _image(1, 3, 10, 10)),
    "depthwise": (_depthwise, _image(1, 3, 12, 12)),
    "recurrent": (Recurrent, _image(2, 4, 16)),
    "attention": (lambda: Stack(Attention(), Mlp()), _image(1, 8, 32)),
    "residual": (
        lambda: Stack(*_conv_bn(3, 12), Residual(), Residual(), nn.Conv2d(12, 4, 1)),
        _image(1, 3, 8, 8),
    ),
    "embedding": (lambda: Stack(nn.Embedding(50, 32), Mlp(), nn.Linear(32, 8)), _tokens),
    "deep": (lambda: Stack(*(Mlp() for _ in range(10)), nn.Linear(32, 8)), _image(2, 32)),
    "transformer": (
        lambda: Stack(*(each for _ in range(4) for each in (Attention(), Mlp()))),
        _image(1, 8, 32),
    ),
    "deep_conv": (
        lambda: Stack(*_conv_bn(3, 12), *(Residual() for _ in range(5)), nn.Conv2d(12, 4, 1)),
        _image(1, 3, 8, 8),
    ),
}


def _by_config(model: str, seed: int, backend: str = "xnnpack", **options: Any) -> Sample:
    """As the config's `quantize:` does it."""
    module, inputs = _make(model, seed)
    program = export(module, inputs(seed))
    method = {"partitioners": [], "quantize": options}
    spec = parse_config("p", {"model": "m", "methods": {"f": method}}, "p.yaml").methods["f"]
    dynamic = options["quantizer"] == "torchao" or options["dynamic"]
    batches = [] if dynamic else [InputSet(inputs(batch)) for batch in _BATCHES]
    lowered = quantize(program, spec.quantize, batches)
    return _sample(program, lowered, backend, dynamic)


def _sample(
    program: ExportedProgram, lowered: ExportedProgram, backend: str, dynamic: bool
) -> Sample:
    files = _packed({"f": lowered}, {"f": [backend] if backend else []})
    return Sample(files, {"f": program}, quantized={"f": lowered}, dynamic=dynamic)


def _by_exporter(model: str, seed: int, per_channel: bool, dynamic: bool = False) -> Sample:
    """As an exporter does it that quantizes before it exports."""
    module, inputs = _make(model, seed)
    config = get_symmetric_quantization_config(per_channel, is_dynamic=dynamic)
    prepared = prepare_pt2e(
        export(module, inputs(seed)).module(check_guards=False),
        XNNPACKQuantizer().set_global(config),
    )
    for batch in _BATCHES:
        prepared(*inputs(batch))
    converted = convert_pt2e(prepared)
    move_exported_model_to_eval(converted)
    program = export(converted, inputs(seed))
    return Sample(_packed({"f": program}, {"f": ["xnnpack"]}), {"f": program})


def _of_dtype(model: str, seed: int, dtype: torch.dtype, backend: str) -> Sample:
    module, inputs = _make(model, seed)
    given = (x.to(dtype) if x.is_floating_point() else x for x in inputs(seed))
    program = export(module.to(dtype), tuple(given))
    return Sample(_packed({"f": program}, {"f": [backend] if backend else []}), {"f": program})


def _four_bits(model: str, seed: int) -> Sample:
    """8da4w, as ExecuTorch's own export of llama has it."""
    module, inputs = _make(model, seed)
    config = Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32))
    quantize_(module, config)
    program = export(unwrap_tensor_subclass(module), inputs(seed))
    return Sample(_packed({"f": program}, {"f": ["xnnpack"]}), {"f": program})


def _make(model: str, seed: int) -> tuple[nn.Module, Inputs]:
    make, inputs = MODELS[model]
    torch.manual_seed(seed)
    module = make()
    for each in module.modules():
        if isinstance(each, (nn.Linear, nn.Conv2d)) and each.bias is not None:
            nn.init.normal_(each.bias, 0, 0.1)
    return module.eval().requires_grad_(False), inputs


STATIC = {"quantizer": "xnnpack", "dynamic": False}
# What 4-bit weights in groups of 32 fit.
_LINEAR = ("linear", "attention", "embedding", "deep", "transformer")
PRECISIONS: dict[str, tuple[Callable[[str, int], Sample], tuple[str, ...]]] = {
    "static per tensor": (partial(_by_config, **STATIC, per_channel=False), tuple(MODELS)),
    "static per channel": (partial(_by_config, **STATIC, per_channel=True), tuple(MODELS)),
    "static, exporter, per tensor": (partial(_by_exporter, per_channel=False), tuple(MODELS)),
    "static, exporter, per channel": (partial(_by_exporter, per_channel=True), tuple(MODELS)),
    "static, portable": (
        partial(_by_config, **STATIC, per_channel=True, backend=""), ("small", "linear", "deep"),
    ),
    "fp16": (partial(_of_dtype, dtype=torch.float16, backend="xnnpack"), tuple(MODELS)),
    "fp16, portable": (
        partial(_of_dtype, dtype=torch.float16, backend=""), ("linear", "attention", "deep_conv"),
    ),
    "bf16": (partial(_of_dtype, dtype=torch.bfloat16, backend="xnnpack"), tuple(MODELS)),
    "bf16, portable": (
        partial(_of_dtype, dtype=torch.bfloat16, backend=""), ("linear", "attention", "deep_conv"),
    ),
    "dynamic": (
        partial(_by_config, quantizer="xnnpack", dynamic=True, per_channel=True),
        ("small", "recurrent", *_LINEAR),
    ),
    "dynamic, exporter": (
        partial(_by_exporter, per_channel=True, dynamic=True), ("recurrent", *_LINEAR),
    ),
    "torchao 8da8w": (
        partial(
            _by_config, quantizer="torchao", scheme="int8_dynamic_activation_int8_weight",
            group_size=0,
        ),
        _LINEAR,
    ),
    "torchao 8da4w": (
        partial(_by_config, quantizer="torchao", scheme="int8_dynamic_activation_int4_weight"),
        _LINEAR,
    ),
    "torchao 8da4w, table of 4 bits": (
        partial(
            _by_config, quantizer="torchao", scheme="int8_dynamic_activation_int4_weight",
            embedding={"bits": 4, "group_size": 32},
        ),
        ("embedding",),
    ),
    "torchao, table of 8 bits": (
        partial(_by_config, quantizer="torchao", embedding={"bits": 8}), ("embedding",),
    ),
    "8da4w, exporter": (_four_bits, _LINEAR),
}  # fmt: skip
FAULTS = (
    "row_in_named_data", "element_in_named_data", "exponent_in_named_data", "row_in_constant",
    "element_in_constant", "exponent_in_constant", "replaced", "operands_swapped", "skipped",
    "xnnpack_replaced", "xnnpack_operands_swapped", "xnnpack_range_lost", "xnnpack_scale",
    "xnnpack_zero_point", "xnnpack_scales_permuted", "scale", "zero_point", "scales_permuted",
)  # fmt: skip


def samples(seeds: int, pattern: str) -> Iterator[tuple[str, str, Callable[[], Sample]]]:
    """Yield each precision, the name of a package in it, and what makes the package."""
    for precision, (make, models) in PRECISIONS.items():
        for model in models:
            for seed in range(seeds):
                if fnmatch(name := f"{model}/{precision}", pattern):
                    yield precision, f"{name}/{seed}", partial(make, model, seed)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations.precision")
    parser.add_argument("--seeds", type=int, default=1, help="of each model in each precision")
    parser.add_argument("--only", default="*", help="a pattern of model/precision")
    parser.add_argument("--no-faults", action="store_true", help="only correct packages")
    parser.add_argument("--json", help="also writes every verdict to this file, one a line")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    with open(arguments.json or os.devnull, "a") as record:
        for precision, name, make in samples(arguments.seeds, arguments.only):
            for verdict in _judge(name, make, [] if arguments.no_faults else FAULTS):
                counts[precision][_class(verdict)] += 1
                record.write(json.dumps(verdict) + "\n")
                record.flush()
    print(_table(counts))


def _judge(name: str, make: Callable[[], Sample], faults: Any) -> Iterator[dict[str, Any]]:
    """Judge a package as it is, then with each fault that applies."""
    from .judge import judge

    try:
        made = make()
    except Exception as error:  # of ExecuTorch
        print(f"{name}: is not lowered: {str(error).splitlines()[-1]}", flush=True)
        return
    SAMPLES[name] = lambda: made
    try:
        for damage in ("", *faults):
            verdict = judge(name, damage, 0)
            if verdict is None:
                continue
            kind = _class(verdict.to_json())
            if kind in ("failed", "passed with a fault", "crashed"):
                print(f"{name} {damage}: {kind}: {verdict.what} {verdict.outcome}", flush=True)
                for sentence in verdict.sentences if not damage else ():
                    print(f"    {sentence}", flush=True)
            yield verdict.to_json()
    finally:
        del SAMPLES[name]


def _class(verdict: dict[str, Any]) -> str:
    outcome = verdict["outcome"]
    if not verdict["damage"]:
        return "correct" if outcome == "equivalent" and not verdict["sentences"] else "failed"
    if outcome in ("caught", "equivalent", "crashed", "hung"):
        return outcome
    return "passed with a fault"


def _table(counts: defaultdict[str, Counter[str]]) -> str:
    total = sum(counts.values(), Counter[str]())
    lines = [f"{'':32}{'packages':>10}{'failed':>8}{'faults':>8}{'caught':>8}"]
    for precision, own in [*counts.items(), ("all", total)]:
        packages = own["correct"] + own["failed"]
        faults = own["caught"] + own["passed with a fault"] + own["crashed"] + own["hung"]
        lines.append(
            f"{precision:32}{packages:>10}{own['failed']:>8}{faults:>8}"
            f"{faults - own['passed with a fault']:>8}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
