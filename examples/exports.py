"""Programs of transformers models, exported as a user would, without the build system.

They use transformers' modules and `torch.export` only. Each function returns the programs of a
package, and its constant methods.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import _transformers as models  # type: ignore[import-not-found]  # in models/
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from transformers import Qwen3ForCausalLM
from transformers.integrations.executorch import (
    Seq2SeqLMExportableModule,
    TorchExportableModuleForDecoderOnlyLM,
)

Exported: TypeAlias = tuple[dict[str, ExportedProgram], dict[str, Any]]


def llama() -> Exported:
    return _language_model(models.llama(), bos=1, eos=2)


def gemma3() -> Exported:
    return _language_model(models.gemma3(), bos=2, eos=1)


def qwen3() -> Exported:
    model = Qwen3ForCausalLM.from_pretrained(models.QWEN3, dtype=torch.float32)
    return _language_model(model.requires_grad_(False).eval(), bos=1, eos=2)


def _language_model(model: Any, bos: int, eos: int) -> Exported:
    """Export a prompt of any length, then one token per call, over a static cache."""
    most = models.POSITIONS
    model.generation_config.use_cache = True
    model.generation_config.cache_implementation = "static"
    model.generation_config.cache_config = {"batch_size": 1, "max_cache_len": most}
    module = TorchExportableModuleForDecoderOnlyLM(model)
    length = Dim("length", min=2, max=most - 1)

    def exported(tokens: int, dynamic_shapes: Any = None) -> ExportedProgram:
        return module.export(
            input_ids=torch.zeros(1, tokens, dtype=torch.int64),
            cache_position=torch.arange(tokens),
            dynamic_shapes=dynamic_shapes,
            strict=True,
        )

    with torch.no_grad():
        prefill = exported(5, {"input_ids": {1: length}, "cache_position": {0: length}})
        decode = exported(1)
    constants = {
        "get_bos_id": bos,
        "get_eos_ids": [eos],
        "get_vocab_size": model.config.vocab_size,
        "get_n_layers": model.config.num_hidden_layers,
        "get_max_batch_size": 1,
        "get_max_seq_len": most,
        "get_max_context_len": most,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": False,
        "enable_dynamic_shape": True,
    }
    return {"prefill": prefill, "decode": decode}, constants


def t5() -> Exported:
    module = Seq2SeqLMExportableModule(models.t5(), max_hidden_seq_length=48, max_cache_length=32)
    exported = module.export()
    constants = {
        "get_eos_ids": [1],
        "get_vocab_size": 256,
        "get_n_layers": 1,
        "get_max_batch_size": 1,
        "get_max_seq_len": 32,
        "use_kv_cache": True,
        "decoder_start_token_id": 0,
    }
    programs = {
        "encoder": exported.exported_encoder,
        "text_decoder": exported.exported_decoder,
    }
    return programs, constants


class Named(nn.Module):
    """Returns some outputs of an image model as tensors; the model itself returns a mapping."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.inner, self.names = model, names

    def forward(self, images: Tensor) -> Any:
        returned = self.inner(pixel_values=images)
        found = tuple(returned[name] for name in self.names)
        return found if len(found) > 1 else found[0]


def vit() -> Exported:
    return _images(Named(models.vit(), "logits"), 32)


def segformer() -> Exported:
    return _images(Named(models.segformer(), "logits"), 32)


def detr() -> Exported:
    return _images(Named(models.detr(), "logits", "pred_boxes"), 64)


def _images(module: nn.Module, size: int) -> Exported:
    with torch.no_grad():
        return {"forward": export(module, (torch.zeros(1, 3, size, size),))}, {}
