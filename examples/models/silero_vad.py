"""Silero's voice activity detector, ExecuTorch's example, with random weights."""

from functools import cache
from typing import Any

import torch
from executorch.examples.models.silero_vad import export_silero_vad as silero
from torch.export import ExportedProgram


@cache
def build() -> torch.nn.Module:
    torch.manual_seed(0)
    return silero.SileroVAD16k().requires_grad_(False).eval()


def exported() -> tuple[dict[str, ExportedProgram], dict[str, Any]]:
    """Return the programs and the metadata that ExecuTorch's script makes."""
    return silero.export_model(build())


def export_methods() -> dict[str, ExportedProgram]:
    """Export `forward` of a window and the LSTM's state."""
    return exported()[0]


def reference(method: str) -> torch.nn.Module:
    """Return the detector in eager mode."""
    return build()
