"""Makes up inputs of one kind from a config: text, an image, or a sound."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_TOKENS = 8
_SECONDS = 1
_SAMPLES = 16_000  # per second, for nearly all sound models
_FRAMES = 100  # per second, in the features of a sound


def make_text(model: Any, generator: torch.Generator) -> dict[str, Tensor]:
    """Return `input_ids` and `attention_mask`, int64 [1, 8]."""
    size = model.config.get_text_config().vocab_size
    tokens = torch.randint(size, (1, _TOKENS), generator=generator)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def make_image(model: Any, generator: torch.Generator) -> dict[str, Tensor]:
    """Return `pixel_values`, [1, channels, height, width]."""
    config = getattr(model.config, "vision_config", model.config)
    size = getattr(config, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else size
    channels = getattr(config, "num_channels", 3)
    return {"pixel_values": torch.rand(1, channels, height, width, generator=generator)}


def make_features(config: Any, generator: torch.Generator) -> dict[str, Tensor]:
    """Return `input_features` of a sound.

    Models like Whisper take [1, bins, frames]. Models that accept any number of frames take [1,
    frames, bins], with an `attention_mask`, int64 [1, frames].
    """
    channels = getattr(config, "input_feat_per_channel", None)
    if channels is None:
        # Whisper's encoder halves the number of frames by a convolution with stride 2.
        frames = 2 * getattr(config, "max_source_positions", 1500)
        shape = (1, config.num_mel_bins, frames)
        return {"input_features": torch.rand(shape, generator=generator)}
    frames = min(_SECONDS * _FRAMES, config.max_source_positions)
    bins = channels * getattr(config, "input_channels", 1)
    features = torch.rand(1, frames, bins, generator=generator)
    mask = torch.ones(1, frames, dtype=torch.int64)
    return {"input_features": features, "attention_mask": mask}


def make_sound(generator: torch.Generator) -> dict[str, Tensor]:
    """Return `input_values`, [1, 16000]."""
    return {"input_values": torch.rand(1, _SECONDS * _SAMPLES, generator=generator)}
