"""Voxtral TTS, ExecuTorch's example, with random weights: the five methods of one file, from text
to audio codes."""

from functools import cache
from typing import Any

import torch
from executorch.examples.models.voxtral_tts import export_voxtral_tts as voxtral
from executorch.examples.models.voxtral_tts.model import VoxtralTTSConfig, VoxtralTTSModel
from torch.export import ExportedProgram

LENGTH = 32
config = VoxtralTTSConfig(
    dim=64,
    n_layers=1,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    hidden_dim=128,
    vocab_size=256,
    at_dim=64,
    at_n_layers=1,
    at_n_heads=4,
    at_n_kv_heads=2,
    at_head_dim=16,
    at_hidden_dim=128,
    semantic_codebook_size=64,
    semantic_dim=32,
    acoustic_dim=8,
    codec_dim=32,
    codec_hidden_dim=64,
    codec_n_heads=2,
    codec_n_kv_heads=2,
    codec_head_dim=16,
    codec_decoder_transformer_lengths=(1, 1, 1, 1),
    max_seq_len=LENGTH,
)


@cache
def build() -> torch.nn.Module:
    torch.manual_seed(0)
    return VoxtralTTSModel(config).requires_grad_(False).eval()


def exported() -> tuple[dict[str, ExportedProgram], dict[str, Any]]:
    """Return the programs and the metadata that ExecuTorch's script makes."""
    return voxtral.export_model(build(), LENGTH)


def export_methods() -> dict[str, ExportedProgram]:
    """Export `text_decoder`, `token_embedding`, `audio_token_embedding`, `semantic_head` and
    `predict_velocity`."""
    return exported()[0]


def reference(method: str) -> torch.nn.Module:
    """Return the script's module of a method, in eager mode."""
    modules = {
        "text_decoder": voxtral.TextDecoderExport,
        "token_embedding": voxtral.TokenEmbeddingExport,
        "audio_token_embedding": voxtral.AudioTokenEmbeddingExport,
        "semantic_head": voxtral.SemanticHeadExport,
        "predict_velocity": voxtral.PredictVelocityExport,
    }
    return modules[method](build()).eval()


def constant_methods() -> dict[str, Any]:
    """Return the script's metadata, which its runner reads."""
    return exported()[1]
