"""Decoder-only language model after LLaMA (Touvron et al., 2023, https://arxiv.org/abs/2302.13971):
RMSNorm (Zhang and Sennrich, 2019), rotary positions (Su et al., 2021), SwiGLU (Shazeer, 2020), and
the grouped-query attention of LLaMA 2 (Ainslie et al., 2023).

`prefill` reads a whole prompt at once; `decode` reads one token at a time and attends to all
previous tokens through a key-value cache in mutable buffers. In its packages, both methods use the
same cache (`share_mutable_buffers`), which `prefill` fills for `decode`. After the same tokens,
both methods return the same logits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.nn.functional import scaled_dot_product_attention, silu

VOCABULARY, WIDTH, HIDDEN, LAYERS = 1024, 128, 352, 2
HEADS, KEY_VALUE_HEADS = 4, 2
HEAD_WIDTH = WIDTH // HEADS
MAX_LENGTH = 128


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(nn.Module):
    """Causal attention of x [1, T, WIDTH] at `positions` [T] over the cache up to there."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, HEADS * HEAD_WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, KEY_VALUE_HEADS * HEAD_WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, KEY_VALUE_HEADS * HEAD_WIDTH, bias=False)
        self.output = nn.Linear(HEADS * HEAD_WIDTH, WIDTH, bias=False)
        cache = (1, KEY_VALUE_HEADS, MAX_LENGTH, HEAD_WIDTH)
        self.register_buffer("key_cache", torch.zeros(cache))
        self.register_buffer("value_cache", torch.zeros(cache))

    def forward(self, x: Tensor, rotation: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        query = rotate(heads(self.query(x), HEADS), rotation)
        self.key_cache.index_copy_(
            2, positions, rotate(heads(self.key(x), KEY_VALUE_HEADS), rotation)
        )
        self.value_cache.index_copy_(2, positions, heads(self.value(x), KEY_VALUE_HEADS))
        key, value = (
            cache.repeat_interleave(HEADS // KEY_VALUE_HEADS, dim=1)
            for cache in (self.key_cache, self.value_cache)
        )
        attended = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.output(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.widen = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.narrow = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(silu(self.gate(x)) * self.widen(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(), Attention()
        self.feed_forward_norm, self.feed_forward = RMSNorm(), FeedForward()

    def forward(self, x: Tensor, rotation: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, mask, positions)
        return x + self.feed_forward(self.feed_forward_norm(x))


class LanguageModel(nn.Module):
    """tokens: int64 [1, T], positions: int64 [T] -> logits of the last: float32 [1, VOCABULARY].

    Writes the keys and values of the tokens into the cache.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = RMSNorm()
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        rates = 10000.0 ** (-torch.arange(0, HEAD_WIDTH, 2) / HEAD_WIDTH)
        angles = torch.outer(torch.arange(MAX_LENGTH), rates)
        self.register_buffer("rotations", torch.stack((angles.cos(), angles.sin())))
        self.register_buffer("causal", torch.ones(MAX_LENGTH, MAX_LENGTH, dtype=torch.bool).tril())

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        rotation, mask = self.rotations[:, positions], self.causal[positions]
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, rotation, mask, positions)
        return self.output(self.norm(x[:, -1]))


class Prefill(nn.Module):
    """tokens: int64 [1, T] -> logits after the last token: float32 [1, VOCABULARY]."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens, torch.arange(tokens.shape[1]))


class Decode(nn.Module):
    """token: int64 [1, 1], position: int64 [1] -> logits after it: float32 [1, VOCABULARY].

    The positions of a sequence count up from 0 without gaps. Whatever the cache contains beyond
    `position` is masked, so a new sequence needs no reset.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        return self.model(token, position)


def heads(x: Tensor, count: int) -> Tensor:
    """[1, T, count * HEAD_WIDTH] -> [1, count, T, HEAD_WIDTH]."""
    return x.unflatten(-1, (count, HEAD_WIDTH)).transpose(1, 2)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turns each pair (x[i], x[i + HEAD_WIDTH / 2]) by the angle of its position.

    x: [1, heads, T, HEAD_WIDTH]; rotation: cosines and sines, [2, T, HEAD_WIDTH / 2].
    """
    cos, sin = rotation[0], rotation[1]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def build() -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel().requires_grad_(False).eval()


def export_methods() -> dict[str, tuple[ExportedProgram, nn.Module]]:
    """Export `prefill`, with T dynamic from 2 to MAX_LENGTH, and `decode`."""
    model = build()
    prefill, decode = Prefill(model), Decode(model)
    length = Dim("length", min=2, max=MAX_LENGTH)
    prompt = torch.zeros(1, 8, dtype=torch.int64)
    token, position = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    return {
        "prefill": (export(prefill, (prompt,), dynamic_shapes=({1: length},)), prefill),
        "decode": (export(decode, (token, position)), decode),
    }


def example_inputs(method: str) -> list[tuple[Tensor, ...]]:
    """Return prompts of several lengths, or for `decode` the tokens of one sequence, in order."""
    if method == "prefill":
        return [(_tokens(length, seed),) for seed, length in enumerate((2, 7, 33, MAX_LENGTH))]
    tokens = _tokens(12, seed=1)
    return [(tokens[:, i : i + 1], torch.tensor([i])) for i in range(tokens.shape[1])]


def _tokens(length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (1, length), generator=generator)
