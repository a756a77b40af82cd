"""Encoder-decoder transformer for translation, after "Attention Is All You Need" (Vaswani et al.,
2017, https://arxiv.org/abs/1706.03762): post-norm layers, sinusoidal positions, and one embedding
matrix for source tokens, target tokens and the output projection (its section 3.4).

`encode` runs once per sentence; `decode` runs once per generated token. Both use the embedding, so
a package that stores weights once is smaller than two packages with one method each.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.nn.functional import linear, relu, scaled_dot_product_attention

VOCABULARY, WIDTH, HEADS, HIDDEN, LAYERS = 1000, 128, 4, 512, 2
MAX_LENGTH = 64


class Attention(nn.Module):
    """Multi-head attention of queries [1, T, WIDTH] over a context [1, S, WIDTH]."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, context: Tensor, causal: bool = False) -> Tensor:
        query, key, value = (
            projected.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
            for projected in (self.query(x), self.key(context), self.value(context))
        )
        attended = scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.output(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(relu(self.widen(x)))


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x + self.attention(x, x))
        return self.norms[1](x + self.feed_forward(x))


class DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.cross_attention = Attention(), Attention()
        self.feed_forward = FeedForward()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = self.norms[0](x + self.attention(x, x, causal=True))
        x = self.norms[1](x + self.cross_attention(x, memory))
        return self.norms[2](x + self.feed_forward(x))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embedding.weight, std=WIDTH**-0.5)
        self.encoder = nn.ModuleList(EncoderLayer() for _ in range(LAYERS))
        self.decoder = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.register_buffer("positions", sinusoids(MAX_LENGTH, WIDTH))

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens) * math.sqrt(WIDTH) + self.positions[: tokens.shape[1]]


class Encode(nn.Module):
    """tokens: int64 [1, S] -> memory: float32 [1, S, WIDTH]."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.model.embed(tokens)
        for layer in self.model.encoder:
            x = layer(x)
        return x


class Decode(nn.Module):
    """tokens: int64 [1, T], memory: float32 [1, S, WIDTH] -> logits: float32 [1, T, VOCABULARY]."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, memory: Tensor) -> Tensor:
        x = self.model.embed(tokens)
        for layer in self.model.decoder:
            x = layer(x, memory)
        return linear(x, self.model.embedding.weight)


def sinusoids(length: int, width: int) -> Tensor:
    """Return fixed positions, float32 [length, width]: sines in even columns, cosines in odd."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    angles = torch.arange(length).unsqueeze(1) * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def build() -> Transformer:
    torch.manual_seed(0)
    return Transformer().requires_grad_(False).eval()


def export_methods() -> dict[str, tuple[ExportedProgram, nn.Module]]:
    """Export `encode` and `decode`, whose lengths S and T are dynamic, from 2 to MAX_LENGTH."""
    model = build()
    encode, decode = Encode(model), Decode(model)
    source = Dim("source", min=2, max=MAX_LENGTH)
    target = Dim("target", min=2, max=MAX_LENGTH)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    memory = torch.zeros(1, 12, WIDTH)
    return {
        "encode": (export(encode, (tokens,), dynamic_shapes=({1: source},)), encode),
        "decode": (
            export(decode, (tokens, memory), dynamic_shapes=({1: target}, {1: source})),
            decode,
        ),
    }


def example_inputs(method: str) -> list[tuple[Tensor, ...]]:
    """Return sentences of several lengths, including the shortest and the longest; `decode` gets
    the memory that `encode` returns for another sentence."""
    lengths = ((2, 2), (8, 12), (37, 5), (MAX_LENGTH, MAX_LENGTH))
    if method == "encode":
        return [(_sentence(source, seed),) for seed, (_, source) in enumerate(lengths)]
    encode = Encode(build())
    return [
        (_sentence(target, 100 + seed), encode(_sentence(source, seed)))
        for seed, (target, source) in enumerate(lengths)
    ]


def calibration_inputs(method: str) -> list[tuple[Tensor, ...]]:
    """Return other sentences like the examples."""
    lengths = ((6, 9), (16, 16), (24, 31), (48, 40))
    if method == "encode":
        return [(_sentence(source, 200 + seed),) for seed, (_, source) in enumerate(lengths)]
    encode = Encode(build())
    return [
        (_sentence(target, 300 + seed), encode(_sentence(source, 200 + seed)))
        for seed, (target, source) in enumerate(lengths)
    ]


def _sentence(length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (1, length), generator=generator)
