"""Small transformers models with random weights, for the sources of this gallery and for the
oracle, built only from transformers' classes."""

from pathlib import Path

import _torchvision  # noqa: F401
import torch
import transformers as hf

POSITIONS = 64  # in the caches
QWEN3 = Path(__file__).parents[1] / "checkpoints" / "qwen3"  # written by `checkpoints.py`
_DECODER = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
}


def llama() -> torch.nn.Module:
    config = hf.LlamaConfig(**_DECODER, num_hidden_layers=1, num_key_value_heads=2)
    return _ready(hf.LlamaForCausalLM, config)


def gemma3() -> torch.nn.Module:
    """Return a Gemma 3 with layers of both kinds, local and global."""
    config = hf.Gemma3TextConfig(
        **_DECODER,
        num_hidden_layers=2,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=32,
        layer_types=["sliding_attention", "full_attention"],
    )
    return _ready(hf.Gemma3ForCausalLM, config)


def t5() -> torch.nn.Module:
    config = hf.T5Config(
        vocab_size=256,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return _ready(hf.T5ForConditionalGeneration, config)


def vit() -> torch.nn.Module:
    config = hf.ViTConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        image_size=32,
        patch_size=8,
        num_labels=10,
    )
    return _ready(hf.ViTForImageClassification, config)


def segformer() -> torch.nn.Module:
    config = hf.SegformerConfig(
        depths=[1, 1],
        num_encoder_blocks=2,
        sr_ratios=[4, 2],
        hidden_sizes=[16, 32],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=32,
        num_labels=5,
    )
    return _ready(hf.SegformerForSemanticSegmentation, config)


def detr() -> torch.nn.Module:
    backbone = hf.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage4"],
    )
    config = hf.DetrConfig(
        use_timm_backbone=False,
        backbone_config=backbone,
        use_pretrained_backbone=False,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_queries=10,
        num_labels=5,
    )
    return _ready(hf.DetrForObjectDetection, config)


def _ready(kind: type, config: hf.PretrainedConfig) -> torch.nn.Module:
    torch.manual_seed(0)
    return kind(config).requires_grad_(False).eval()
