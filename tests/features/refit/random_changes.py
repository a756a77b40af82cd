"""Random changes to the constants of small models: compares what the recipe of one build makes of
them with a cold compile, byte for byte.

    python -m tests.features.refit.random_changes [NUMBER] [MODEL ...]

NUMBER is the number of changes, 2,000 by default, divided among the models. Each model is built
once to learn its recipe. Constants become equal, zero, one, negative, sparse, denormal, infinite or
NaN: one at a time, some of them or all. For each model it prints how often both gave the same
bytes, how often refit said why it can't, and how often they differed: never.
"""

from __future__ import annotations

import io
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import export
from torch.export.pt2_archive._package import load_pt2, package_pt2

from pipeline.features.refit.refit import find_record
from pipeline.features.speedups.patches import fast_lowering
from pipeline.run.build.perform_compile import perform_compile
from pipeline.run.stages import Stages
from tests.features.refit.__main__ import CANNOT, DIFFERENT, SAME, Trial, judge

XNNPACK: dict[str, Any] = {"partitioners": ["xnnpack"]}
PORTABLE: dict[str, Any] = {"partitioners": []}
DYNAMIC = {**XNNPACK, "quantize": {"quantizer": "xnnpack", "dynamic": True}}
FOUR_BIT = {
    **XNNPACK,
    "quantize": {
        "quantizer": "torchao",
        "scheme": "int8_dynamic_activation_int4_weight",
        "group_size": 32,
    },
}


class Folded(nn.Module):
    """Convolutions with batch norms, one of which is folded, and PReLU slopes."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.depthwise, self.slopes = nn.Conv2d(4, 4, 3, groups=4), nn.PReLU(4)
        self.alone = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.alone(self.slopes(self.depthwise(self.norm(self.conv(x)))))


class Tied(nn.Module):
    """A table that is also the weight of a layer, two equal layers, and a norm between them."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(8, 32), nn.LayerNorm(32)
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, i):
        x = torch.relu(self.first(self.table(i)))
        return nn.functional.linear(self.norm(torch.relu(self.second(x))), self.table.weight)


class Lifted(nn.Module):
    """Numbers and tensors that the forward pass creates, a state that it writes, and casts."""

    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(4))
        self.register_buffer("mask", torch.tensor([True, False, True, True]))
        self.register_buffer("places", torch.tensor([3, 1, 0, 2]))
        self.narrow = nn.Parameter(torch.rand(4, 4).half())
        self.scale = nn.Parameter(torch.rand(()))

    def forward(self, x):
        self.state.add_(x.sum(0) * self.scale)
        y = torch.where(self.mask, x * torch.tensor([1.0, 2.0, 3.0, 4.0]), self.state)
        return y[:, self.places] @ self.narrow.float() / self.scale + 0.5


class Half(nn.Module):
    """Sixteen-bit weights."""

    def __init__(self):
        super().__init__()
        self.conv, self.line = nn.Conv1d(2, 4, 3), nn.Linear(6, 8)
        self.up = nn.ConvTranspose1d(4, 4, 2, groups=2)
        self.half()

    def forward(self, x):
        return self.up(torch.relu(self.line(self.conv(x))))


class Twins(nn.Module):
    """Two equal layers, each a separate partition; the second is made again only to learn."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x).cumsum(1))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...], dict[str, Any]]] = {
    "folded": (Folded, (torch.rand(1, 3, 8, 8),), XNNPACK),
    "tied": (Tied, (torch.tensor([1, 2]),), XNNPACK),
    "lifted": (Lifted, (torch.rand(2, 4),), PORTABLE),
    "half": (Half, (torch.rand(1, 2, 8).half(),), XNNPACK),
    "folded-portable": (Folded, (torch.rand(1, 3, 8, 8),), PORTABLE),
    "lifted-xnnpack": (Lifted, (torch.rand(2, 4),), XNNPACK),
    "dynamic": (Tied, (torch.tensor([1, 2]),), DYNAMIC),
    "four-bit": (Tied, (torch.tensor([1, 2]),), FOUR_BIT),
    "twins": (Twins, (torch.rand(2, 4),), XNNPACK),
}


def write_workspace(root: Path, name: str, seed: int) -> None:
    make, arguments, method = MODELS[name]
    torch.manual_seed(seed)
    model = make().eval().requires_grad_(False)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.1, 1.0)
    if isinstance(model, Twins):
        model.second.load_state_dict(model.first.state_dict())
    (root / "models").mkdir(parents=True)
    (root / "partition_configs").mkdir()
    program = export(model, arguments)
    package_pt2(str(root / "models" / f"{name}.pt2"), exported_programs={"run": program})
    config = {"model": name, "methods": {"run": method}}
    (root / "partition_configs" / f"{name}.yaml").write_text(json.dumps(config))


FLOATS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "other": lambda w: torch.rand_like(w) + 0.1,
    "signs": lambda w: torch.randn_like(w),
    "negative": lambda w: -w.abs(),
    "zero": torch.zeros_like,
    "minus zero": lambda w: -torch.zeros_like(w),
    "one": torch.ones_like,
    "sparse": lambda w: w * (torch.rand_like(w) > 0.7),
    "denormal": lambda w: torch.full_like(w, torch.finfo(w.dtype).smallest_normal / 4),
    "large": lambda w: torch.full_like(w, torch.finfo(w.dtype).max),
    "infinite": lambda w: w / 0,
    "NaN": lambda w: torch.where(torch.rand_like(w) > 0.5, w, float("nan")),
    "turned": lambda w: w.flip(0) if w.ndim else w,
}


# torchao's observers refuse these.
_ENDLESS = ("large", "infinite", "NaN")


def change(archive: Path, first: bytes, seed: int, quantized: bool = False) -> str:
    """Write the archive with other constants, and return the kind of change."""
    ways = [way for way in FLOATS if not quantized or way not in _ENDLESS]
    programs = load_pt2(io.BytesIO(first)).exported_programs
    chance = random.Random(seed)
    torch.manual_seed(seed)
    (program,) = programs.values()
    tensors = {**program.state_dict, **program.constants}
    ordinary = chance.random() < 0.4
    most = 1 if chance.random() < 0.6 else len(tensors)
    names = [*tensors] if ordinary else chance.sample([*tensors], chance.randint(1, most))
    kinds = ["other"] if ordinary else chance.sample(ways, 2)
    for name in names:
        tensor = tensors[name].detach()
        if tensor.is_floating_point():
            tensor.copy_(FLOATS[chance.choice(kinds)](tensor.clone()))
        else:
            flat = tensor.reshape(-1)
            tensor.copy_(flat[torch.randperm(flat.numel())].view_as(tensor))
    if not ordinary and chance.random() < 0.3:  # two become equal
        one, two = chance.choice([*tensors.values()]), chance.choice([*tensors.values()])
        if one.shape == two.shape and one.dtype == two.dtype:
            one.detach().copy_(two.detach().clone())
    package_pt2(str(archive), exported_programs=programs)
    return f"{', '.join(kinds)} in {len(names)} of {len(tensors)}"


def build(name: str, folder: Path, seed: int = 0) -> tuple[Trial, dict[str, Any]]:
    """Compile a model, and return it with the learned recipe."""
    write_workspace(folder / "made", name, seed)
    trial = Trial(folder / "made", name, folder)
    (action,) = trial.plan().compiles(name)
    with fast_lowering(patches=True):
        perform_compile(action, trial.workspace, Stages())
    record = find_record(action, trial.workspace.store)
    assert record is not None
    return trial, dict(record.result)


def judge_changes(name: str, count: int, folder: Path, seed: int = 0) -> tuple[Counter, Counter]:
    """Change a model's constants; count the verdicts, and the reasons why refit could not."""
    trial, record = build(name, folder, seed)
    assert record["proven"], record["why"]
    (archive,) = trial.archives
    first = archive.read_bytes()
    verdicts: Counter = Counter()
    reasons: Counter = Counter()
    for number in range(count):
        what = change(archive, first, seed + number, "quantize" in MODELS[name][2])
        (action,) = trial.plan().compiles(name)
        verdict, why = judge(action, trial)
        verdicts[verdict] += 1
        reasons[why] += verdict == CANNOT
        if verdict == DIFFERENT:
            print(f"  {name}, change {seed + number}, {what}: {verdict}", flush=True)
    return verdicts, reasons


def main(words: list[str]) -> int:
    torch.set_num_threads(1)
    count = int(words.pop(0)) if words and words[0].isdigit() else 2000
    names = words or [*MODELS]
    total: Counter = Counter()
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            verdicts, reasons = judge_changes(name, count // len(names), Path(folder))
        total += verdicts
        print(name, dict(verdicts), *reasons.most_common(6), sep="\n  ", flush=True)
    print("all:", dict(total))
    return int(bool(total[DIFFERENT]) or not total[SAME])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
