"""Writes the `.pt2` files of the sample workspace `archives`: run it when torch changes."""

from pathlib import Path

import torch
from torch.export import export
from torch.export.pt2_archive._package import package_pt2

MODELS = Path(__file__).parent / "archives" / "models"


class Scale(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.register_buffer("factor", torch.full((3,), factor))

    def forward(self, x):
        return x * self.factor


class Shift(Scale):
    def forward(self, x):
        return x + self.factor


def main():
    x = (torch.ones(2, 3),)
    one = {"encode": export(Scale(2.0), x), "decode": export(Shift(-1.0), x)}
    package_pt2(str(MODELS / "one.pt2"), exported_programs=one)
    (MODELS / "many").mkdir(parents=True, exist_ok=True)
    torch.export.save(export(Scale(3.0), x), MODELS / "many" / "features.pt2")
    torch.export.save(export(Shift(0.5), x), MODELS / "many" / "classify.pt2")


if __name__ == "__main__":
    main()
