"""A small language model and its LoRA adapters (https://arxiv.org/abs/2106.09685): each changes
some weights of the same base by a low-rank term for one task; `base` is the unchanged model."""

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, LAYERS, RANK = 512, 128, 3, 4


class Adapted(nn.Module):
    """A linear layer and the low-rank term that an adapter adds to it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.grow, self.shrink = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        scores = self.query(y) @ self.key(y).transpose(-1, -2) / WIDTH**0.5
        x = x + scores.softmax(-1) @ self.value(y)
        return x + self.shrink(nn.functional.gelu(self.grow(x)))


class Assistant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.layers(self.words(words)))


def export_methods(adapter: str):
    torch.manual_seed(0)
    model = Assistant()
    words = torch.arange(16).reshape(1, 16)
    if adapter == "base":
        return {"forward": torch.export.export(model.eval(), (words,))}
    torch.manual_seed(sum(adapter.encode()))  # stands in for this adapter's checkpoint
    for layer in model.layers:
        layer.query, layer.value = Adapted(layer.query), Adapted(layer.value)
        for adapted in (layer.query, layer.value):
            nn.init.normal_(adapted.up.weight, std=0.05)
    return {"forward": torch.export.export(model.eval(), (words,))}
