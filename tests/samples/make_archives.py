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


def exported(module):
    """Export a module without stack traces, which contain paths of the machine."""
    program = export(module, (torch.ones(2, 3),))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


def main():
    one = {"encode": exported(Scale(2.0)), "decode": exported(Shift(-1.0))}
    package_pt2(str(MODELS / "one.pt2"), exported_programs=one)
    (MODELS / "many").mkdir(parents=True, exist_ok=True)
    torch.export.save(exported(Scale(3.0)), MODELS / "many" / "features.pt2")
    torch.export.save(exported(Shift(0.5)), MODELS / "many" / "classify.pt2")


if __name__ == "__main__":
    main()
