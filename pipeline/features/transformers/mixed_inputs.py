"""Makes up inputs for a model that takes text with an image or a sound, without its processor.

A prompt holds one token for each feature that the model computes from an image or a sound. Their
number depends on the patches, strides, poolings and projectors of each family, so the model's own
encoder is asked, in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor

from pipeline.features.transformers.plain_inputs import (
    make_features,
    make_image,
    make_text,
)

Inputs = dict[str, Tensor]
# Families whose image tensors have an axis of images after the axis of samples.
_SEVERAL_IMAGES = ("idefics2", "idefics3", "smolvlm")
_MARKED = ("gemma3",)  # these need to know which tokens belong to an image
# Arguments of encoders that say how a processor cut up an image, which differs by family.
_LAYOUTS = ("image_grid_thw", "spatial_shapes")


def make_mixed_inputs(model: Any, generator: torch.Generator) -> Inputs | None:
    """Return arguments of a model's `generate` or `forward` for one sample.

    They are `input_ids` and `attention_mask`, int64 [1, T], and either `pixel_values`, [1,
    channels, height, width] or with an axis of images in front of the channels, or
    `input_features`, [1, bins, frames].

    Returns None if the model takes further kinds of input, or its encoder needs more than that.
    """
    config = model.config
    sees, hears = hasattr(config, "vision_config"), hasattr(config, "audio_config")
    if sees == hears:
        return None
    media = make_image(model, generator) if sees else _make_sound(config, generator)
    token = getattr(config, "image_token_id" if sees else "audio_token_id", None)
    if token is None:  # two towers, as in CLIP
        return _select(model, {**make_text(model, generator), **media})
    if config.model_type in _SEVERAL_IMAGES:
        media = {"pixel_values": media["pixel_values"][None]}
    number = _count_features(model, media)
    if number is None:
        return None
    inputs = {**_make_prompt(model, token, number, generator), **media}
    if config.model_type in _MARKED:
        inputs["token_type_ids"] = (inputs["input_ids"] == token).long()
    return _select(model, inputs)


def _make_sound(config: Any, generator: torch.Generator) -> Inputs:
    features = make_features(config.audio_config, generator)
    frames = features["input_features"].shape[-1]
    mask = torch.ones(1, frames, dtype=torch.int64)
    return {**features, "feature_attention_mask": mask}


def _make_prompt(
    model: Any, token: int, number: int, generator: torch.Generator
) -> Inputs:
    """Return a text with the tokens of an image or a sound after its first token."""
    text = make_text(model, generator)["input_ids"]
    names = ("image_token_id", "audio_token_id", "video_token_id")
    special = [getattr(model.config, name, None) for name in names]
    reserved = torch.tensor([value for value in special if value is not None])
    allowed = next(value for value in range(len(reserved) + 1) if value not in special)
    # Any further tokens of an image or a sound would require further features.
    text[torch.isin(text, reserved)] = allowed
    tokens = torch.cat([text[:, :1], torch.full((1, number), token), text[:, 1:]], 1)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def _count_features(model: Any, media: Mapping[str, Tensor]) -> int | None:
    """Return the number of features that the model computes from its image or sound.

    Returns None if its encoder takes something else.
    """
    kind = "image" if "pixel_values" in media else "audio"
    extract = getattr(model, f"get_{kind}_features", None)
    if extract is None:
        return _count_by_length(model, media)
    arguments = _choose_arguments(extract, media)
    if arguments is None:
        return None
    with torch.no_grad():
        features = extract(**arguments).pooler_output
    tensors = [features] if isinstance(features, Tensor) else features
    return sum(tensor.numel() // tensor.shape[-1] for tensor in tensors)


def _choose_arguments(
    extract: Callable[..., Any], media: Mapping[str, Tensor]
) -> dict[str, Tensor] | None:
    """Return the inputs that an encoder takes, or None if it needs others."""
    for name, parameter in signature(extract).parameters.items():
        required = parameter.default is Parameter.empty and parameter.kind not in (
            Parameter.VAR_KEYWORD,
            Parameter.VAR_POSITIONAL,
        )
        if name in _LAYOUTS or (required and name not in media):
            return None
    main = ("pixel_values", "input_features")
    return {name: value for name, value in media.items() if name in main}


def _count_by_length(model: Any, media: Mapping[str, Tensor]) -> int | None:
    """Return the number of features of a sound, computed as in encoders like Qwen2-Audio's."""
    tower = getattr(model.base_model, "audio_tower", None)
    count = getattr(tower, "_get_feat_extract_output_lengths", None)
    if count is None or "feature_attention_mask" not in media:
        return None
    _, lengths = count(media["feature_attention_mask"].sum(-1))
    return int(lengths.sum())


def _select(model: Any, inputs: Inputs) -> Inputs:
    """Return the inputs that the model's `forward` takes."""
    parameters = signature(model.forward).parameters
    return {name: value for name, value in inputs.items() if name in parameters}
