"""Finds the function that is reading a tensor's values, and names its place for people.

It also checks whether the source text of such a function is the version reviewed as harmless.
"""

from __future__ import annotations

import sys
from functools import cache
from pkgutil import resolve_name
from typing import Any

from pipeline.compile.inspect import storages
from pipeline.program.patching import digest_source
from pipeline.store.releases import installed_release

# Modules that read values to watch, to describe, or to find partitions in the store, not to decide.
OBSERVERS = (
    __name__,
    "pipeline.features.refit.watch",
    "pipeline.features.refit.hooks",
    "pipeline.features.refit.operators",
    storages.__name__,
)
# Functions that take the bytes of storages and base no decision on them, and the digests of their
# texts in the first release of `store.releases`, which has the digests for other releases.
_EMITTER = "executorch.exir.emit._emitter"
_XNNPACK = "executorch.backends.xnnpack.operators.node_visitor"
SERIALIZERS = (
    f"{_EMITTER}:_Emitter._tensor_spec_to_evalue",
    f"{_XNNPACK}:NodeVisitor.get_quant_params",
    f"{_XNNPACK}:NodeVisitor.get_serialized_buffer_index",
)
# It takes the address of the tensor that holds the random number state, and discards it.
ADDRESS_TRIER = "torch._dynamo.utils:skip_frame_if_in_functorch_mode"
# It makes a tensor from a number in the graph without calling an operator.
_NUMBER_MAKER = (
    "executorch.backends.xnnpack._passes.decompose_batch_norm:"
    "DecomposeBatchNorm.compute_w_and_b"
)
_TEXTS = dict(
    zip(
        (*SERIALIZERS, _NUMBER_MAKER),
        (
            "e9b1de11fd7b95531e180b4515cfa1251a6b8b24b4735b629b6b0ec7017c723a",
            "4d7a736f280acbea652facc34f7b37f6c4781f17d9c2a121bdd0e30a4daadd26",
            "492f85f4cd57ca03b231c1ed687e559f804b7a053157ece37ea0f285a1948ac3",
            "0b2a2c81f4f3b1694ea514331a612302c9895c25d126eca7a2dd394c104fbfa8",
        ),
        strict=True,
    )
)


@cache
def has_known_text(function: str) -> bool:
    """Return whether the text of one of these functions is the reviewed version."""
    text = digest_source(resolve_name(function))
    return text == installed_release().digest_of(function, _TEXTS[function])


def name_function(frame: Any) -> str:
    return f"{frame.f_globals.get('__name__', '')}:{frame.f_code.co_qualname}"


def is_number_maker() -> bool:
    """Return whether the function that is computing now makes a tensor from a number in the graph.

    Its text must be the reviewed version.
    """
    frame = _reader()
    function = name_function(frame) if frame is not None else ""
    return function == _NUMBER_MAKER and has_known_text(function)


def name_place() -> str:
    """Return the function and line that read values now, as text for people."""
    frame = _reader()
    if frame is None:
        return "torch"
    return f"{name_function(frame).replace(':', '.')}, line {frame.f_lineno}"


def _reader() -> Any:
    """Return the frame of the function that reads values now, or None.

    It is the innermost function that belongs neither to torch nor to an observing module.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        passed = module.startswith(("torch.", "contextlib", "executorch.exir.dialects"))
        if module not in (*OBSERVERS, "torch") and not passed:
            return frame
        frame = frame.f_back
    return None
