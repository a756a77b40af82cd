"""Gemma 4's speech transform, ExecuTorch's example: a spectrogram of sound of any length."""

import torch
from executorch.examples.models.gemma4.speech_transform import Gemma4SpeechTransformModel
from torch.export import Dim, ExportedProgram, export


def export_methods() -> dict[str, tuple[ExportedProgram, torch.nn.Module]]:
    """Export `speech_transform` of 16 kHz samples, float32 [160 n + 1]."""
    model = Gemma4SpeechTransformModel().requires_grad_(False).eval()
    samples = torch.randn(3201, generator=torch.Generator().manual_seed(0))
    frames = Dim("frames", min=4, max=100)
    program = export(model, (samples,), dynamic_shapes=({0: 160 * frames + 1},))
    return {"speech_transform": (program, model)}


def example_inputs(method: str) -> list[tuple[torch.Tensor]]:
    """Return sounds of several lengths."""
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(160 * frames + 1, generator=generator),) for frames in (4, 31, 100)]
