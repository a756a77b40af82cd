"""The plain script for the benchmark of large models.

It exports and lowers a decoder as a user would write it, without a build system.

    python -m benchmarks.plain_decoder SIZES float32|4bit OUT.pte

`SIZES` holds the arguments of `decoder.make_decoder` as JSON.
"""

from __future__ import annotations

import json
import sys

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torchao.quantization import Int8DynamicActivationIntxWeightConfig
from torchao.quantization.granularity import PerGroup
from torchao.quantization.quant_api import quantize_
from torchao.utils import unwrap_tensor_subclass

from benchmarks.decoder import export_decoder, make_decoder


def main(sizes: str, precision: str, out: str) -> None:
    decoder = make_decoder(**json.loads(sizes))
    if precision == "4bit":
        quantize_(decoder, Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32)))
        unwrap_tensor_subclass(decoder)
    programs = export_decoder(decoder)
    partitioners = {name: [XnnpackPartitioner()] for name in programs}
    to_edge_transform_and_lower(programs, partitioner=partitioners).to_executorch().save(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
