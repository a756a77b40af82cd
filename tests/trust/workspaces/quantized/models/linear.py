"""A linear layer made from inputs of every kind that an exporter can have."""

import json
import os
from pathlib import Path

import torch
from _sizes import SIZE
from safetensors.torch import load_file
from torch.export import export

HERE = Path(__file__).parent


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(SIZE, SIZE)
        self.gain = json.loads((HERE / "facts.json").read_text())["gain"]
        self.gain += float(os.environ.get("PROVEN_GAIN", "0"))
        if (HERE / "shift.txt").exists():
            self.gain += 1.0
        self.gain += len(list(HERE.glob("shard*")))

    def forward(self, x):
        return torch.relu(self.inner(x)) * self.gain


def export_methods():
    linear = Linear().eval().requires_grad_(False)
    linear.inner.bias.copy_(load_file(HERE / "bias.safetensors")["bias"])
    return {"run": export(linear, (torch.ones(2, SIZE),))}


def calibration_inputs(method):
    return [(torch.linspace(-1, 1, 2 * SIZE).reshape(2, SIZE),)]
