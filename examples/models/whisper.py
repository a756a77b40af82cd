"""Whisper from transformers, with random weights: `encode` of a spectrogram, and `decode` of the
tokens so far, whose number is dynamic."""

import _torchvision  # noqa: F401
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from transformers import WhisperConfig, WhisperForConditionalGeneration

MELS, FRAMES, TARGETS = 80, 100, 32
config = WhisperConfig(
    vocab_size=256,
    num_mel_bins=MELS,
    d_model=32,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_source_positions=FRAMES // 2,
    max_target_positions=TARGETS,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
    use_cache=False,
)


class Encode(nn.Module):
    """features: float32 [1, MELS, FRAMES] -> hidden: float32 [1, FRAMES / 2, 32]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, features: Tensor) -> Tensor:
        return self.encoder(features).last_hidden_state


class Decode(nn.Module):
    """tokens: int64 [1, T], hidden -> logits: float32 [1, T, 256]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.decoder, self.head = model.get_decoder(), model.proj_out

    def forward(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        return self.head(self.decoder(tokens, encoder_hidden_states=hidden).last_hidden_state)


def build() -> nn.Module:
    torch.manual_seed(0)
    return WhisperForConditionalGeneration(config).requires_grad_(False).eval()


def export_methods() -> dict[str, tuple[ExportedProgram, nn.Module]]:
    """Export `encode`, and `decode` with T from 2 to TARGETS."""
    model = build()
    length = Dim("length", min=2, max=TARGETS)
    tokens, hidden = torch.ones(1, 5, dtype=torch.int64), torch.zeros(1, FRAMES // 2, 32)
    encode, decode = Encode(model), Decode(model)
    with torch.no_grad():
        encoder = export(encode, (torch.zeros(1, MELS, FRAMES),))
        decoder = export(decode, (tokens, hidden), dynamic_shapes=({1: length}, None))
    return {"encode": (encoder, encode), "decode": (decoder, decode)}
