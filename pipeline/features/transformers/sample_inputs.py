"""Makes up the inputs with which a model is exported if its source gives none.

The exported program depends only on their shapes and dtypes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipeline.features.transformers.mixed_inputs import make_mixed_inputs
from pipeline.features.transformers.plain_inputs import (
    make_features,
    make_image,
    make_sound,
    make_text,
)
from pipeline.store.errors import SourceError

_KINDS = ("text_config", "vision_config", "audio_config")


def make_sample_inputs(model: Any) -> dict[str, Tensor]:
    """Return arguments of a model's `generate` or `forward` for one sample.

    `plain_inputs` and `mixed_inputs` make them. Raises SourceError if the model takes something
    else.
    """
    generator = torch.Generator().manual_seed(0)
    if sum(hasattr(model.config, kind) for kind in _KINDS) > 1:
        inputs = make_mixed_inputs(model, generator)
    else:
        inputs = _make_plain_inputs(model, generator)
    if inputs is None:
        raise SourceError(
            f"{type(model).__name__}: no inputs can be generated for it; pass them: "
            "Exported(..., inputs=...), as its processor returns them"
        )
    return inputs


def _make_plain_inputs(
    model: Any, generator: torch.Generator
) -> dict[str, Tensor] | None:
    match model.main_input_name:
        case "input_ids":
            return make_text(model, generator)
        case "pixel_values":
            return make_image(model, generator)
        case "input_features":
            return make_features(model.config, generator)
        case "input_values":
            return make_sound(generator)
    return None
