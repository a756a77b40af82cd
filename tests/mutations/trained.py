"""Small networks to be quantized, trained on synthetic tasks, with held-out examples.

Quantization is only meaningful for meaningful weights: the outputs of untrained ones are noise
before anything is rounded. Each network trains for a second or two, from a fixed seed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export

from pipeline.program.inputs import InputSet

_STEPS, _BATCH = 250, 64
_EXAMPLES, _CALIBRATION = 16, 32  # input sets, of one row each
Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]  # inputs and their classes


@dataclass(frozen=True, eq=False)
class Task:
    """A network for rows of inputs, their classes, and its quantization.

    Attributes:
        options: the config's settings under `quantize`.
        unshare: turns the trained network into the one to quantize, if it needs a change.
    """

    name: str
    make: Callable[[], nn.Module]
    draw: Draw
    options: dict[str, Any]
    unshare: Callable[[nn.Module], nn.Module] | None = None

    @cached_property
    def module(self) -> nn.Module:
        """Return the trained network in eval mode."""
        torch.manual_seed(0)
        module = self.make().train()
        generator = torch.Generator().manual_seed(0)
        optimizer = torch.optim.AdamW(module.parameters(), 5e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
        for _ in range(_STEPS):
            inputs, classes = self.draw(_BATCH, generator)
            loss = nn.functional.cross_entropy(module(inputs), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        return module.eval().requires_grad_(False)

    @cached_property
    def for_quantizing(self) -> nn.Module:
        """Return the trained network in a form that PT2E quantizes correctly."""
        return self.module if self.unshare is None else self.unshare(copy.deepcopy(self.module))

    @cached_property
    def program(self) -> ExportedProgram:
        return self.export(self.module)

    @cached_property
    def examples(self) -> list[InputSet]:
        """Return held-out rows, which neither training nor calibration has seen."""
        return self._sets(10, _EXAMPLES, "example")

    @cached_property
    def calibration(self) -> list[InputSet]:
        return self._sets(20, _CALIBRATION, "calibration")

    def export(self, module: nn.Module) -> ExportedProgram:
        return export(module, self.calibration[0].args)

    def accuracy(self) -> float:
        """Return the share of held-out rows that the float network classifies correctly."""
        inputs, classes = self.draw(512, torch.Generator().manual_seed(30))
        return (self.module(inputs).argmax(-1) == classes).float().mean().item()

    def _sets(self, seed: int, count: int, origin: str) -> list[InputSet]:
        generator = torch.Generator().manual_seed(seed)
        drawn = [self.draw(1, generator)[0] for _ in range(count)]
        return [InputSet((x,), {}, f"{origin} {number}") for number, x in enumerate(drawn)]


class Pair(nn.Module):
    """One convolution for two halves of an image, each with a separate batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = self.other_conv = nn.Conv2d(3, 12, 3, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm2d(12), nn.BatchNorm2d(12)
        self.head = nn.Linear(24 * 9, 8)

    def forward(self, x: Tensor) -> Tensor:
        left = torch.relu(self.norm1(self.conv(x)))
        right = torch.relu(self.norm2(self.other_conv(0.5 - 2 * x)))
        both = nn.functional.avg_pool2d(torch.cat([left, right], 1), 4)
        return self.head(both.flatten(1))


def _unshare(module: nn.Module) -> nn.Module:
    module.other_conv = copy.deepcopy(module.conv)
    return module


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 32), nn.Linear(32, 32)
        self.third, self.head = nn.Linear(32, 32), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x))
        return self.head(torch.relu(self.third(x)))


def _draw_images(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw shapes on a background, slightly shifted, in uneven light, as normalized pixels."""
    shapes = torch.rand(8, 3, 12, 12, generator=torch.Generator().manual_seed(7))
    shapes = nn.functional.avg_pool2d(shapes, 3, 1, 1) * 4 - 1.2
    classes = torch.randint(8, (count,), generator=generator)
    moves = torch.randint(-1, 2, (count, 2), generator=generator).tolist()
    pairs = zip(classes, moves, strict=True)
    moved = torch.stack([shapes[number].roll(move, (1, 2)) for number, move in pairs])
    light = 0.6 + 0.8 * torch.rand(count, 1, 1, 1, generator=generator)
    return moved * light + 0.25 * torch.randn(moved.shape, generator=generator), classes


def _draw_records(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw rows of measurements, some of them skewed, around a center for each class."""
    centres = 1.2 * torch.randn(6, 24, generator=torch.Generator().manual_seed(8))
    classes = torch.randint(6, (count,), generator=generator)
    rows = centres[classes] + torch.randn(count, 24, generator=generator)
    return torch.cat([rows[:, :12], rows[:, 12:].exp().clamp(max=12.0)], 1), classes


_STATIC = {"quantizer": "xnnpack", "dynamic": False}
_TASKS = (
    Task("pair", Pair, _draw_images, {**_STATIC, "per_channel": True}, _unshare),
    Task("mlp", Mlp, _draw_records, {**_STATIC, "per_channel": False}),
)
TASKS = {task.name: task for task in _TASKS}
