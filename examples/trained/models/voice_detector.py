"""Silero's voice activity detector, one window of a stream per call.

The module comes from ExecuTorch's example; the weights are `silero_vad_16k.safetensors` of
silero-vad 6.2.3 (MIT).
"""

from importlib.util import find_spec
from pathlib import Path

import torch
from _speech import call
from executorch.examples.models.silero_vad.export_silero_vad import (
    CONTEXT_SIZE,
    HIDDEN_DIM,
    WINDOW_SIZE,
    SileroVAD16k,
)
from safetensors.torch import load_file
from torch import Tensor
from torch.export import ExportedProgram, export


def load() -> SileroVAD16k:
    """Return the detector with the trained weights."""
    (folder,) = find_spec("silero_vad").submodule_search_locations
    weights = load_file(Path(folder) / "data" / "silero_vad_16k.safetensors")
    for index in range(4):  # the file numbers its convolutions from 1
        for part in ("weight", "bias"):
            weights[f"encoder.{index}.{part}"] = weights.pop(f"conv{index + 1}.{part}")
    model = SileroVAD16k()
    model.load_state_dict(weights)
    return model.requires_grad_(False).eval()


def windows() -> list[Tensor]:
    """Return the call window by window, each with the end of the previous one: float32 [1, 576]."""
    padded = torch.nn.functional.pad(call(), (CONTEXT_SIZE, 0))
    return list(padded.unfold(0, CONTEXT_SIZE + WINDOW_SIZE, WINDOW_SIZE).unsqueeze(1))


def begin() -> Tensor:
    """Return the state before the first window: float32 [2, 1, 128]."""
    return torch.zeros(2, 1, HIDDEN_DIM)


def export_methods() -> dict[str, tuple[ExportedProgram, torch.nn.Module]]:
    """Export `step` over a window, which returns the probability of speech and the next state."""
    model = load()
    return {"step": (export(model, (windows()[0], begin())), model)}


def example_inputs(method: str) -> list[tuple[Tensor, Tensor]]:
    """Return windows of the call's second half, with the detector's states before them."""
    return stream()[470::24]


def calibration_inputs(method: str) -> list[tuple[Tensor, Tensor]]:
    """Return windows of the first half, where speech begins after seven seconds."""
    return stream()[:460:10]


def stream() -> list[tuple[Tensor, Tensor]]:
    """Return the inputs of every window of the call, in order."""
    model, state, inputs = load(), begin(), []
    for window in windows():
        inputs.append((window, state))
        _, state = model(window, state)
    return inputs
