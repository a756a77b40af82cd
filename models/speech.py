"""Speech encoder after Conformer (Gulati et al., 2020, https://arxiv.org/abs/2005.08100): a
convolution that halves the time axis, as Whisper's does, then blocks of half feed-forward,
self-attention, depthwise convolution, half feed-forward.

`encode` returns one vector for every second frame. `detect`, which runs all the time, returns the
probability that someone is speaking there, and uses only the first block of the same trunk. Both
accept any number of frames within a range.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.nn.functional import gelu, glu, silu

MELS, WIDTH, HEADS, HIDDEN, LAYERS, KERNEL = 40, 96, 4, 384, 2, 15
MIN_FRAMES, MAX_FRAMES = 16, 400


class Attention(nn.Module):
    """Self-attention over all frames; x: [1, T, WIDTH]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        query, key, value = (
            projection(x).squeeze(0).unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(0, 1)
            for projection in (self.query, self.key, self.value)
        )
        scores = torch.bmm(query * (WIDTH // HEADS) ** -0.5, key.transpose(1, 2))
        attended = torch.bmm(scores.softmax(-1), value)
        return self.output(attended.transpose(0, 1).flatten(1).unsqueeze(0))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(silu(self.widen(self.norm(x))))


class Convolution(nn.Module):
    """Mixes neighboring frames, channel by channel; x: [1, T, WIDTH]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.filter = nn.Conv1d(WIDTH, WIDTH, KERNEL, padding=KERNEL // 2, groups=WIDTH)
        self.batch_norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = glu(self.widen(self.norm(x)), dim=-1).transpose(1, 2)
        x = silu(self.batch_norm(self.filter(x)))
        return self.narrow(x.transpose(1, 2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = FeedForward(), FeedForward()
        self.attention, self.convolution = Attention(), Convolution()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.before(x)
        x = x + self.attention(x)
        x = x + self.convolution(x)
        return self.norm(x + 0.5 * self.after(x))


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.Conv1d(MELS, WIDTH, 3, padding=1)
        self.halve = nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.detector = nn.Linear(WIDTH, 1)
        self.register_buffer("positions", sinusoids((MAX_FRAMES + 1) // 2, WIDTH))

    def trunk(self, mel: Tensor, layers: int) -> Tensor:
        x = gelu(self.halve(gelu(self.widen(mel)))).transpose(1, 2)
        x = x + self.positions[: x.shape[1]]
        for block in self.blocks[:layers]:
            x = block(x)
        return x


class Encode(nn.Module):
    """mel: float32 [1, MELS, T] -> float32 [1, (T + 1) // 2, WIDTH]."""

    def __init__(self, model: Speech) -> None:
        super().__init__()
        self.model = model

    def forward(self, mel: Tensor) -> Tensor:
        return self.model.trunk(mel, LAYERS)


class Detect(nn.Module):
    """mel: float32 [1, MELS, T] -> probabilities of speech: float32 [1, (T + 1) // 2]."""

    def __init__(self, model: Speech) -> None:
        super().__init__()
        self.model = model

    def forward(self, mel: Tensor) -> Tensor:
        return self.model.detector(self.model.trunk(mel, 1)).sigmoid().squeeze(-1)


def sinusoids(length: int, width: int) -> Tensor:
    """Return fixed positions, float32 [length, width]: sines in even columns, cosines in odd."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    angles = torch.arange(length).unsqueeze(1) * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def build() -> Speech:
    """Return the model with seeded weights, and batch statistics like a trained model's."""
    torch.manual_seed(0)
    model = Speech()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.05, 0.15)
    return model.requires_grad_(False).eval()


def export_methods() -> dict[str, tuple[ExportedProgram, nn.Module]]:
    """Export `encode` and `detect`, with T dynamic from MIN_FRAMES to MAX_FRAMES."""
    model = build()
    frames = Dim("frames", min=MIN_FRAMES, max=MAX_FRAMES)
    arguments = (torch.zeros(1, MELS, 100),)
    methods = {"encode": Encode(model), "detect": Detect(model)}
    return {
        name: (export(method, arguments, dynamic_shapes=({2: frames},)), method)
        for name, method in methods.items()
    }


def example_inputs(method: str) -> list[tuple[Tensor]]:
    """Return clips of several lengths, including odd ones and both range limits, and silence."""
    clips = [(_clip(frames, seed),) for seed, frames in enumerate((MIN_FRAMES, 101, MAX_FRAMES))]
    return [*clips, (torch.full((1, MELS, 50), -1.0),)]


def calibration_inputs(method: str) -> list[tuple[Tensor]]:
    """Return other clips like the examples."""
    return [(_clip(frames, 100 + frames),) for frames in (40, 95, 160, 320)]


def _clip(frames: int, seed: int) -> Tensor:
    """Return log-mel features in Whisper's scale, about -1 to 1: two formants that come and go
    over noise; float32 [1, MELS, frames]."""
    generator = torch.Generator().manual_seed(seed)
    time, mel = torch.arange(frames) / 100, torch.arange(MELS).unsqueeze(1)
    level = 0.02 * torch.rand(MELS, frames, generator=generator)
    for start, loudness in ((8, 1.0), (22, 0.5)):
        rate, phase = torch.rand(2, generator=generator) * 5
        formant = start + 4 * torch.sin(rate * time + phase)
        voiced = torch.sin(2 * rate * time + phase).clamp_min(0)
        level = level + loudness * voiced * torch.exp(-((mel - formant) ** 2) / 8)
    return (level.clamp_min(1e-4).log10() / 2 + 1).unsqueeze(0)
