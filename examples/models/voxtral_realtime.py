"""Voxtral Realtime, ExecuTorch's example, with random weights: `audio_encoder`, with one length
that is 8 times another, `text_decoder` over a cache with custom operators, and
`token_embedding`."""

from functools import cache
from typing import Any

import torch
from executorch.examples.models.voxtral_realtime import export_voxtral_rt as voxtral
from executorch.examples.models.voxtral_realtime.model import (
    VoxtralRealtimeConfig,
    VoxtralRealtimeModel,
    compute_time_embedding,
)
from torch.export import ExportedProgram

LENGTH = 32
config = VoxtralRealtimeConfig(
    dim=64,
    n_layers=1,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    hidden_dim=128,
    vocab_size=256,
    ada_rms_norm_t_cond_dim=8,
    enc_dim=32,
    enc_n_layers=1,
    enc_n_heads=2,
    enc_head_dim=16,
    enc_hidden_dim=64,
    num_mel_bins=16,
    max_seq_len=LENGTH,
    sliding_window=LENGTH,
)


@cache
def build() -> torch.nn.Module:
    torch.manual_seed(0)
    model = VoxtralRealtimeModel(config)
    model.register_buffer("t_cond", compute_time_embedding(6, config.dim))
    return model.requires_grad_(False).eval()


def exported() -> tuple[dict[str, ExportedProgram], dict[str, Any]]:
    """Return the programs and the metadata that ExecuTorch's script makes."""
    programs, metadata, *_ = voxtral.export_all(build(), LENGTH)  # returns three values in 1.5
    return programs, metadata


def export_methods() -> dict[str, ExportedProgram]:
    """Export `audio_encoder`, `text_decoder` and `token_embedding`."""
    return exported()[0]


def reference(method: str) -> torch.nn.Module:
    """Return the script's module of a method, in eager mode."""
    modules = {
        "audio_encoder": voxtral.AudioEncoderExport,
        "text_decoder": voxtral.TextDecoderExport,
        "token_embedding": voxtral.TokenEmbeddingExport,
    }
    return modules[method](build()).eval()


def constant_methods() -> dict[str, Any]:
    """Return the script's metadata, which its runner reads."""
    return exported()[1]
