"""A second example of a method, with other values of the integers that decide where a decoder is:
the counters of a static cache, and the token with which it begins.

The example of the export has one value of each, from which random inputs draw theirs. So what the
method makes of them alone, such as the counter that it returns, was alike in each call, and a
package that holds it as a constant could not be told from a sound one.
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
    """Return the example of a program with each counter of its static caches one further, and
    another token to begin with, as arguments and keywords; nothing for a program that has neither,
    or that transformers did not export."""
    if not program.example_inputs or not read_record("", program.graph_module.meta):
        return []
    arguments, keywords = copy.deepcopy(program.example_inputs)
    layers = _find_layers_with_room(keywords)
    for layer in layers:
        layer.cumulative_length = layer.cumulative_length + 1
    start = keywords.get(_START)
    if start is not None:  # any other number below that of tokens
        keywords[_START] = torch.where(start > 0, start - 1, start + 1)
    return [(arguments, keywords)] if layers or start is not None else []


def _find_layers_with_room(keywords: Mapping[str, Any]) -> list[Any]:
    """Return the layers of static caches, if they have room for the tokens and one more."""
    layers = [layer for value in keywords.values() for layer in _find_layers(value)]
    lengths = [keywords[name].shape[1] for name in _TOKENS if name in keywords]
    added = max(lengths, default=1) + 1
    for layer in layers:
        if layer.cumulative_length + added > layer.max_cache_len:
            return []
    return layers


def _find_layers(value: Any) -> Iterator[Any]:
    """Yield the layers of a cache that count their positions in a tensor: of a decoder's own
    attention, where it also attends to an encoder."""
    cache = getattr(value, "self_attention_cache", value)
    for layer in getattr(cache, "layers", ()):
        is_static = hasattr(layer, "max_cache_len")
        if is_static and isinstance(layer.cumulative_length, Tensor):
            yield layer
