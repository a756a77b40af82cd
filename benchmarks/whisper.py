"""Whisper-tiny (Radford et al., 2022, https://arxiv.org/abs/2212.04356) with random weights: the
shapes and operators of `openai/whisper-tiny` in transformers, which need not be installed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.nn import functional as F

MELS, FRAMES, WIDTH, HEADS, LAYERS, VOCABULARY, TARGETS = 80, 3000, 384, 6, 4, 51865, 448


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, source: Tensor, causal: bool = False) -> Tensor:
        query, key, value = (
            each.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
            for each in (self.query(x), self.key(source), self.value(source))
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.output(attended.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A layer of the encoder or the decoder; the decoder's also attends to the encoder's states."""

    def __init__(self, crosses: bool) -> None:
        super().__init__()
        self.attention, self.crossing = Attention(), Attention() if crosses else None
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 + crosses))
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        for norm in self.norms:  # like trained norms, no two alike
            nn.init.normal_(norm.weight, 1.0, 0.1)
            nn.init.normal_(norm.bias, 0.0, 0.1)

    def forward(self, x: Tensor, states: Tensor | None = None) -> Tensor:
        normal = self.norms[0](x)
        x = x + self.attention(normal, normal, causal=states is not None)
        if self.crossing is not None and states is not None:
            x = x + self.crossing(self.norms[1](x), states)
        return x + self.narrow(F.gelu(self.widen(self.norms[-1](x))))


class Encoder(nn.Module):
    """features: float32 [1, MELS, FRAMES] -> states: float32 [1, FRAMES / 2, WIDTH]."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(MELS, WIDTH, 3, padding=1)
        self.second = nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.positions = nn.Embedding(FRAMES // 2, WIDTH)
        self.layers = nn.ModuleList(Layer(crosses=False) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, features: Tensor) -> Tensor:
        x = F.gelu(self.second(F.gelu(self.first(features)))).transpose(1, 2)
        x = x + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Decoder(nn.Module):
    """tokens: int64 [1, T], states -> logits: float32 [1, T, VOCABULARY]; T up to TARGETS."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TARGETS, WIDTH)
        self.layers = nn.ModuleList(Layer(crosses=True) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor, states: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x, states)
        return F.linear(self.norm(x), self.tokens.weight)


def export_methods() -> dict[str, ExportedProgram]:
    """Export `encode`, and `decode` of the tokens so far, whose number is dynamic."""
    torch.manual_seed(0)
    encoder, decoder = (each.eval().requires_grad_(False) for each in (Encoder(), Decoder()))
    tokens, states = torch.ones(1, 5, dtype=torch.int64), torch.zeros(1, FRAMES // 2, WIDTH)
    length = Dim("length", min=2, max=TARGETS)
    return {
        "encode": export(encoder, (torch.zeros(1, MELS, FRAMES),)),
        "decode": export(decoder, (tokens, states), dynamic_shapes=({1: length}, None)),
    }
