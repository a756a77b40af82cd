"""Runs packages fetched with `pte fetch`, without transformers: `python client.py PTE ...`."""

import sys
from pathlib import Path

import torch

from pte_pipeline import load_package

INPUTS = {
    "vision": {"pixel_values": torch.rand(1, 3, 16, 16)},
    "speech": {"input_values": torch.rand(1, 16_000)},
}

for path in map(Path, sys.argv[1:]):
    package = load_package(path)
    inputs = INPUTS.get(path.stem.partition("-")[0])
    if inputs is None:  # a decoder, which takes its caches as arguments
        print(f"{path.name}: loaded, methods {', '.join(package)}")
        continue
    logits = package.forward(**inputs)["logits"]
    print(f"{path.name}: logits {list(logits.shape)}, finite: {bool(logits.isfinite().all())}")
