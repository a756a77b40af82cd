"""Operators of ExecuTorch and torchao: attention over a cache, an 8-bit table and
4-bit weights."""

import executorch.extension.llm.custom_ops.custom_ops
import executorch.kernels.quantized  # noqa: F401
import torch
import torch.ao.quantization.fx._decomposed
from torchao.quantization.granularity import PerGroup
from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig, quantize_
from torchao.utils import unwrap_tensor_subclass


class Step(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query = torch.nn.Linear(16, 16).requires_grad_(False)
        self.register_buffer("keys", torch.zeros(1, 8, 2, 8))
        self.register_buffer("values", torch.zeros(1, 8, 2, 8))

    def forward(self, x):
        query = self.query(x).view(1, 1, 2, 8)
        torch.ops.llama.update_cache(query, self.keys, 0)
        torch.ops.llama.update_cache(query * 2, self.values, 0)
        return torch.ops.llama.custom_sdpa(query, self.keys, self.values, 0, None, 0.0, False)


class Embed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(0, 255, (10, 16), dtype=torch.uint8))
        self.register_buffer("scales", torch.rand(10))
        self.register_buffer("zeros", torch.zeros(10))

    def forward(self, rows):
        lookup = torch.ops.quantized_decomposed.embedding_byte
        return lookup(self.weight, self.scales, self.zeros, 0, 255, rows)


def export_methods():
    torch.manual_seed(0)
    project = torch.nn.Sequential(torch.nn.Linear(32, 8)).requires_grad_(False)
    config = Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32))
    quantize_(project, config)
    unwrap_tensor_subclass(project)
    return {
        "step": torch.export.export(Step(), (torch.randn(1, 1, 16),)),
        "embed": torch.export.export(Embed(), (torch.tensor([1, 2, 3]),)),
        "project": torch.export.export(project, (torch.randn(2, 32),)),
    }
