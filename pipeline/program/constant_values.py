"""Encodes values of constant methods as JSON, from a config or an exporter, for linking.

Finite numbers, strings, bools and lists of them are already JSON. Any other value becomes a list
of its leaves, with torch's serialized tree of the containers around them, which ExecuTorch writes
into the package; the bytes of a tensor become a blob in the store. torch is imported lazily.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pipeline.program.scalar_types import SCALAR_TYPES
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError

if TYPE_CHECKING:
    from torch import Tensor

_KINDS = (
    "numbers, strings, bools, torch.dtype, torch.layout and dense tensors on the CPU"
)
_LAYOUTS = (
    "strided",
    "sparse_coo",
)  # in order of number (exir/tensor.py, `layout_enum`)


def wrong_value(value: Any) -> str:
    """Return how a JSON value must change to fit into a plan, as "must be ...", or "" if it fits.

    A plan holds 64-bit numbers, and strings that end at the first NUL.
    """
    if isinstance(value, list):
        return next(filter(None, map(wrong_value, value)), "")
    if not isinstance(value, int | float | str):
        return "must be a number, string, true, false or a list of these"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "must be a number of at most 64 bits"
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if isinstance(value, str) and re.search(r"[\0\ud800-\udfff]", value):
        return "must be a string without NUL and lone surrogates"
    return ""


def encode_constant(value: Any, put: Callable[[bytes], Digest]) -> Any:
    """Return an exporter's value as JSON; `put` stores the bytes of a tensor.

    Accepts the same values as `to_edge(constant_methods=)`, and raises ValueError for any other.
    """
    from torch.utils import _pytree as pytree

    leaves, tree = pytree.tree_flatten(value)
    encoded = [_encode_leaf(leaf, put) for leaf in leaves]
    is_plain = not any(isinstance(leaf, dict) for leaf in encoded)
    if is_plain and _has_lists_only(tree):
        return pytree.tree_unflatten(encoded, tree)
    try:
        return {"leaves": encoded, "structure": pytree.treespec_dumps(tree)}
    except NotImplementedError as error:  # a class without a registered name
        raise ValueError(f"must be {_KINDS}, in lists, tuples and dicts") from error


def _has_lists_only(tree: Any) -> bool:
    if tree.is_leaf():
        return True
    return tree.type is list and all(map(_has_lists_only, tree.children()))


def _encode_leaf(leaf: Any, put: Callable[[bytes], Digest]) -> Any:
    import torch

    if isinstance(leaf, torch.dtype):
        return SCALAR_TYPES.split().index(_word(leaf))
    if isinstance(leaf, torch.layout) and _word(leaf) in _LAYOUTS:
        return _LAYOUTS.index(_word(leaf))
    if type(leaf) in (torch.Tensor, torch.nn.Parameter):
        return {"tensor": _encode_tensor(leaf, put)}
    if isinstance(leaf, float) and not math.isfinite(leaf):
        return {"float": repr(float(leaf))}
    for kind in (bool, int, float, str):
        if isinstance(leaf, kind):
            mistake = wrong_value(leaf)
            if mistake:
                raise ValueError(mistake)
            return kind(leaf)  # strips an enum or a subclass
    raise ValueError(
        f"holds a value of type {type(leaf).__name__}, must be of {_KINDS}"
    )


def _encode_tensor(tensor: Tensor, put: Callable[[bytes], Digest]) -> dict[str, Any]:
    """Describe a tensor as the emitter describes a constant (`TensorSpec.from_tensor`).

    The tensor is made contiguous, but keeps its stride in dimensions of size 1.
    """
    import torch

    is_dense = tensor.layout is torch.strided and not tensor.is_quantized
    if not is_dense or tensor.device.type != "cpu":
        raise ValueError(
            f"holds a tensor that is not dense or not on the CPU, must be of {_KINDS}"
        )
    contiguous = tensor.detach().contiguous()
    data = contiguous.reshape(-1).view(torch.uint8).numpy().tobytes()
    return {
        "dtype": _word(tensor.dtype),
        "sizes": list(contiguous.shape),
        "strides": list(contiguous.stride()),
        "requires_grad": tensor.requires_grad,
        "data": put(data),
    }


def decode_constant(
    record: Any, read: Callable[[Digest], bytes]
) -> tuple[Any, str | None]:
    """Return the value and None, or a list of its leaves and torch's serialized tree of them.

    Raises PipelineError if a tensor's bytes don't match its record.
    """
    if not isinstance(record, dict):
        return record, None
    return [_decode_leaf(leaf, read) for leaf in record["leaves"]], record["structure"]


def _decode_leaf(leaf: Any, read: Callable[[Digest], bytes]) -> Any:
    import torch

    if not isinstance(leaf, dict):
        return leaf
    if "float" in leaf:
        return float(leaf["float"])
    facts = leaf["tensor"]
    data = bytearray(read(facts["data"]))
    try:
        dtype = getattr(torch, facts["dtype"])
        if data:
            flat = torch.frombuffer(data, dtype=dtype)
        else:
            flat = torch.empty(0, dtype=dtype)
        tensor = flat.as_strided(facts["sizes"], facts["strides"])
        return tensor.requires_grad_(facts["requires_grad"])
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise PipelineError(
            "a tensor of a constant method differs from its record in the store or its remote; "
            "`doit -a` ignores both"
        ) from error


def find_blobs(record: Any) -> Iterator[Digest]:
    """Yield the digests of the blobs that an encoded value needs: the bytes of its tensors."""
    if not isinstance(record, dict):
        return
    for leaf in record["leaves"]:
        if isinstance(leaf, dict) and "tensor" in leaf:
            yield leaf["tensor"]["data"]


def _word(name: Any) -> str:
    return str(name).removeprefix("torch.")
