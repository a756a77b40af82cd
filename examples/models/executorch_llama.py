"""Llama as ExecuTorch's example builds it, with random weights: custom attention over a custom
cache, adapters (LoRA), and linear layers with 4-bit weights (8da4w)."""

import torch
from executorch.examples.models.llama.llama_transformer import construct_transformer
from executorch.examples.models.llama.model_args import ModelArgs
from executorch.examples.models.llama.source_transformation.custom_kv_cache import (
    replace_kv_cache_with_custom_kv_cache,
)
from executorch.examples.models.llama.source_transformation.sdpa import replace_sdpa_with_custom_op
from executorch.extension.llm.export.quantize import quantize_model_
from torch import Tensor
from torch.export import Dim, ExportedProgram, export
from torchao.utils import unwrap_tensor_subclass

LENGTH = 32


def build() -> torch.nn.Module:
    torch.manual_seed(0)
    arguments = ModelArgs(
        dim=64,
        n_layers=1,
        n_heads=4,
        n_kv_heads=2,
        vocab_size=256,
        hidden_dim=128,
        max_seq_len=LENGTH,
        max_context_len=LENGTH,
        use_kv_cache=True,
        use_sdpa_with_kv_cache_op=True,
        enable_dynamic_shape=True,
        r=8,
        lora_alpha=16,
        target_modules=["q_proj", "v_proj"],
    )
    model = construct_transformer(arguments).requires_grad_(False).eval()
    model = replace_sdpa_with_custom_op(replace_kv_cache_with_custom_kv_cache(model))
    quantize_model_(
        model, qlinear_config="8da4w", qlinear_group_size=32, skip_incompatible_shapes=True
    )
    return unwrap_tensor_subclass(model)  # archives hold plain tensors only


def _call(tokens: Tensor, position: int) -> tuple[tuple[Tensor], dict[str, dict[str, Tensor]]]:
    return (tokens,), {"attn_options": {"input_pos": torch.tensor([position])}}


def export_methods() -> dict[str, tuple[ExportedProgram, torch.nn.Module]]:
    """Export `forward` of 1 to LENGTH - 1 tokens, given the position of the first one."""
    (tokens,), options = _call(torch.tensor([[2, 3, 4]]), 0)
    length = Dim("length", min=1, max=LENGTH - 1)
    shapes = {"tokens": {1: length}, "attn_options": {"input_pos": {0: 1}}}
    with torch.no_grad(), torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        model = build()
        program = export(model, (tokens,), options, dynamic_shapes=shapes, strict=True)
    return {"forward": (program, model)}
