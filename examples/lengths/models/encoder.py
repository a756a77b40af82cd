"""A text encoder for a few fixed lengths, for delegates that don't support dynamic sizes: one
method per length, all with the same weights."""

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, LONGEST = 512, 128, 512


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(LONGEST, WIDTH) / 10)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.layers(self.words(words) + self.places[: words.shape[1]])


def export_methods(lengths: list[int]):
    torch.manual_seed(0)
    model = Encoder().eval().requires_grad_(False)
    texts = {length: torch.arange(length).reshape(1, length) for length in lengths}
    return {f"encode_{n}": torch.export.export(model, (text,)) for n, text in texts.items()}
