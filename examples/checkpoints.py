"""Makes the Hugging Face folders that the samples read: random weights, in safetensors.

python examples/checkpoints.py
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "checkpoints"


def make_qwen3(folder: Path) -> None:
    """Write a small Qwen3 as config.json, generation_config.json and model.safetensors."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parent / "models"))
    if not (FOLDER / "qwen3" / "model.safetensors").exists():
        import _torchvision  # noqa: F401

        make_qwen3(FOLDER / "qwen3")
