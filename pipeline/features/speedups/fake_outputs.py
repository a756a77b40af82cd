"""Checks once per kind of tensor that torch can make fake results from its cache.

Before torch keeps what an operator returns for fake tensors, it makes a tensor from the new entry
and compares its dispatch keys with those of the real result (torch 2.13,
`FakeTensorMode._get_output_info_for_cache_entry`). Tensors of one kind get the same keys.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

_Function = Callable[..., Any]
# The functions that make a tensor from an entry.
SOURCES = (
    FakeTensorMode._get_output_info_for_cache_entry,
    FakeTensorMode._output_from_cache_entry,
    FakeTensorMode._get_output_tensor_from_cache_entry,
)


def make_info(original: _Function) -> _Function:
    """Return a method that describes a result for the cache, making no tensor of a known kind."""
    known: set[Hashable] = set()

    def describe(
        self: FakeTensorMode,
        state: Any,
        key: Any,
        func: Any,
        args: Sequence[Any],
        *rest: Any,
    ) -> Any:
        output = rest[-1]
        kind = _find_kind(output, func)
        if kind is None or kind not in known:
            entry = original(self, state, key, func, args, *rest)
            if kind is not None:
                known.add(kind)
            return entry
        own = vars(self)
        # The original compares the keys of what this returns with those of the output.
        own["_output_from_cache_entry"] = lambda *entry: output
        try:
            return original(self, state, key, func, args, *rest)
        finally:
            del own["_output_from_cache_entry"]

    return describe


def _find_kind(output: Any, func: Any) -> Hashable | None:
    """Return what the dispatch keys of a tensor that is made like this one depend on.

    Returns None for other values, and for sizes that depend on data, which torch may refuse.
    """
    if type(output) is not FakeTensor:
        return None
    if output._has_symbolic_sizes_strides and free_unbacked_symbols(output):
        return None
    return (
        torch._C._dispatch_keys(output).raw_repr(),
        output.dtype,
        output.layout,
        output.requires_grad,
        output.is_conj(),
        output.is_neg(),
        getattr(func, "is_view", False),
        torch.is_inference_mode_enabled(),
    )
