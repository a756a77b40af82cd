"""Inputs with which a model is exported, made up from its config: of text, images or sound alone.
Only their shapes and dtypes are in the exported program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pipeline.store.errors import SourceError

_TOKENS = 8
_SECONDS = 1
_SAMPLES = 16_000  # a second, of nearly all models of sound


def make_sample_inputs(model: Any) -> dict[str, Tensor]:
    """Return arguments of a model's `generate` or `forward`, of one sample: `input_ids` and
    `attention_mask`, int64 [1, 8]; `pixel_values`, [1, channels, height, width]; `input_features`,
    [1, bins, frames]; or `input_values`, [1, 16000].

    Raises SourceError for a model that takes something else, or text and something else.
    """
    name = model.main_input_name
    kinds = {"text_config", "vision_config", "audio_config"}
    several = sum(hasattr(model.config, kind) for kind in kinds) > 1
    if several or name not in _MAKERS:
        raise SourceError(
            f"{type(model).__name__}: no inputs can be made up for it; give them: "
            "Exported(..., inputs=...), as its processor returns them"
        )
    generator = torch.Generator().manual_seed(0)
    return _MAKERS[name](model, generator)


def _make_text(model: Any, generator: torch.Generator) -> dict[str, Tensor]:
    size = model.config.get_text_config().vocab_size
    tokens = torch.randint(size, (1, _TOKENS), generator=generator)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def _make_image(model: Any, generator: torch.Generator) -> dict[str, Tensor]:
    config = getattr(model.config, "vision_config", model.config)
    size = getattr(config, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else size
    channels = getattr(config, "num_channels", 3)
    return {"pixel_values": torch.rand(1, channels, height, width, generator=generator)}


def _make_features(model: Any, generator: torch.Generator) -> dict[str, Tensor]:
    config = model.config
    bins = getattr(config, "num_mel_bins", None) or config.input_feat_per_channel
    frames = 2 * getattr(config, "max_source_positions", 1500)
    return {"input_features": torch.rand(1, bins, frames, generator=generator)}


def _make_sound(model: Any, generator: torch.Generator) -> dict[str, Tensor]:
    samples = _SECONDS * _SAMPLES
    return {"input_values": torch.rand(1, samples, generator=generator)}


_Make = Callable[[Any, torch.Generator], dict[str, Tensor]]
_MAKERS: dict[str, _Make] = {
    "input_features": _make_features,
    "input_ids": _make_text,
    "input_values": _make_sound,
    "pixel_values": _make_image,
}
