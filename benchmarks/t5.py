"""T5 (Raffel et al., 2019, https://arxiv.org/abs/1910.10683) with random weights, as small as in
the gallery: modules of transformers, exported as transformers exports them."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from transformers import T5Config, T5ForConditionalGeneration
from transformers.integrations.executorch import Seq2SeqLMExportableModule

SOURCE, CACHE = 48, 32  # tokens


def export_methods() -> dict[str, ExportedProgram]:
    """Export `encoder`, and `text_decoder` of one token over a static cache."""
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=256,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_heads=4,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config).eval().requires_grad_(False)
    exported = Seq2SeqLMExportableModule(
        model, max_hidden_seq_length=SOURCE, max_cache_length=CACHE
    ).export()
    return {
        "encoder": exported.exported_encoder,
        "text_decoder": exported.exported_decoder,
    }
