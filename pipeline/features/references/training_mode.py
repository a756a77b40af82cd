"""Finds modules of a reference in training mode, in which its outputs may be random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pipeline.features.references.reference_state import iter_reachable

_OTHERWISE_IN_TRAINING = (
    torch.nn.modules.dropout._DropoutNd,
    torch.nn.modules.batchnorm._NormBase,
    torch.nn.RNNBase,
)


def find_modules_in_training(reference: Callable[..., Any]) -> list[str]:
    """Return the modules of a reference in training mode that behave differently in it."""
    for value in iter_reachable(reference):
        if not isinstance(value, torch.nn.Module):
            continue
        names = [
            f"{name or 'the module'} ({type(module).__name__})"
            for name, module in value.named_modules()
            if module.training and isinstance(module, _OTHERWISE_IN_TRAINING)
        ]
        if names:
            return names
    return []
