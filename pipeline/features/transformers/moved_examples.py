"""A second example of a method, with other values of the integers that track a decoder's position.

These are the counters of a static cache, and the token with which the decoder begins. The export's
example has one value of each, and random inputs take theirs from it. Results that depend on these
values alone, such as a counter that a method returns, would therefore be the same in every call,
and a package that holds them as constants could not be distinguished from a correct one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from pipeline.features.transformers.recorded import read_record

_START = "decoder_input_ids"
_TOKENS = (_START, "input_ids", "inputs_embeds")


def move_example(program: ExportedProgram) -> list[tuple[Any, ...]]:
    """Return a program's example with the counters of its static caches advanced by one.

    The token with which the decoder begins is changed, too. The list holds one pair of arguments
    and keyword arguments. It is empty if the program has no such token and no counters with room
    to advance, or if transformers did not export it.
    """
    if not program.example_inputs or not read_record("", program.graph_module.meta):
        return []
    arguments, keywords = copy.deepcopy(program.example_inputs)
    layers = _find_layers_with_room(keywords)
    for layer in layers:
        layer.cumulative_length = layer.cumulative_length + 1
    start = keywords.get(_START)
    if start is not None:  # any other valid token
        keywords[_START] = torch.where(start > 0, start - 1, start + 1)
    return [(arguments, keywords)] if layers or start is not None else []


def _find_layers_with_room(keywords: Mapping[str, Any]) -> list[Any]:
    """Return the layers of static caches, or [] unless all have room for one extra token."""
    layers = [layer for value in keywords.values() for layer in _find_layers(value)]
    lengths = [keywords[name].shape[1] for name in _TOKENS if name in keywords]
    added = max(lengths, default=1) + 1
    for layer in layers:
        if layer.cumulative_length + added > layer.max_cache_len:
            return []
    return layers


def _find_layers(value: Any) -> Iterator[Any]:
    """Yield the layers of a cache that count their positions in a tensor.

    For a decoder that also attends to an encoder, these are the layers of its self-attention.
    """
    cache = getattr(value, "self_attention_cache", value)
    for layer in getattr(cache, "layers", ()):
        is_static = hasattr(layer, "max_cache_len")
        if is_static and isinstance(layer.cumulative_length, Tensor):
            yield layer
