"""A language model's decoder of any size, with random weights.

It is an exporter that benchmarks copy into their workspaces, and the module that the plain script
lowers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.nn import functional as F

HEAD = 64  # values per head


class RootMeanSquare(nn.Module):
    """Root mean square normalization (Zhang and Sennrich, 2019) of the last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width).normal_(1.0, 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class Layer(nn.Module):
    """Causal attention over the tokens so far, and a gated perceptron (Shazeer, 2020)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (_linear(width, width) for _ in range(4))
        self.gate, self.widen = _linear(width, hidden), _linear(width, hidden)
        self.narrow = _linear(hidden, width)
        self.norms = nn.ModuleList(RootMeanSquare(width) for _ in range(2))

    def forward(
        self, x: Tensor, mask: Tensor, keys: Tensor | None, values: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x: [1, T, width], earlier keys and values: [1, heads, P, HEAD], mask: [T, P + T]."""
        normal = self.norms[0](x)
        query, key, value = (
            linear(normal).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        if keys is not None and values is not None:
            key, value = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        scores = query @ key.transpose(2, 3) * HEAD**-0.5 + mask
        attended = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        x = x + self.output(attended)
        normal = self.norms[1](x)
        return x + self.narrow(F.silu(self.gate(normal)) * self.widen(normal)), key, value


class Decoder(nn.Module):
    """tokens: int64 [1, T] -> logits of the last token: float32 [1, vocabulary], keys and values:
    float32 [layers, 1, heads, P + T, HEAD], where P is the number of earlier tokens."""

    def __init__(self, layers: int, width: int, hidden: int, vocabulary: int, prompt: int) -> None:
        super().__init__()
        self.tokens, self.positions = (
            nn.Embedding(vocabulary, width),
            nn.Embedding(prompt + 1, width),
        )
        self.layers = nn.ModuleList(Layer(width, hidden) for _ in range(layers))
        self.norm, self.head = RootMeanSquare(width), _linear(width, vocabulary)

    def forward(
        self, tokens: Tensor, keys: Tensor | None = None, values: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        earlier = 0 if keys is None else keys.shape[3]
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions.weight[earlier : earlier + length]
        mask = torch.full((length, earlier + length), -1e4).triu(earlier + 1)
        new_keys, new_values = [], []
        for number, layer in enumerate(self.layers):
            before = (
                (None, None) if keys is None or values is None else (keys[number], values[number])
            )
            x, key, value = layer(x, mask, *before)
            new_keys.append(key)
            new_values.append(value)
        logits = self.head(self.norm(x[:, -1]))
        return logits, torch.stack(new_keys), torch.stack(new_values)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a linear layer without a bias, whose weights are quick to draw."""
    linear = nn.Linear(inputs, outputs, bias=False, device="meta").to_empty(device="cpu")
    nn.init.uniform_(linear.weight, -(inputs**-0.5), inputs**-0.5)
    return linear


def make_decoder(
    layers: int = 4,
    width: int = 128,
    hidden: int = 512,
    vocabulary: int = 1000,
    prompt: int = 32,
    seed: int = 0,
) -> Decoder:
    """Return a decoder with random weights, determined by the seed."""
    torch.manual_seed(seed)
    decoder = Decoder(layers, width, hidden, vocabulary, prompt)
    return decoder.eval().requires_grad_(False)


def export_decoder(decoder: Decoder) -> dict[str, ExportedProgram]:
    """Return `prefill`, which takes a prompt, and `decode`, which takes the next token."""
    width = decoder.tokens.embedding_dim
    prompt = decoder.positions.num_embeddings - 1
    token = torch.ones(1, 1, dtype=torch.int64)
    state = torch.zeros(len(decoder.layers), 1, width // HEAD, prompt, HEAD)
    prefill = export(decoder, (token.repeat(1, prompt),))
    return {"prefill": prefill, "decode": export(decoder, (token, state, state.clone()))}


def export_methods(**options: int) -> dict[str, ExportedProgram]:
    return export_decoder(make_decoder(**options))
