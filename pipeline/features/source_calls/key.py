"""The keys of source calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pipeline.plan.kinds.parts import Key, common_fields
from pipeline.program.inputs import InputSet
from pipeline.store.digest import Digest, hash_bytes, hash_json
from pipeline.store.toolchain import host


def source_call_key(
    lane: str,
    programs: Mapping[str, Sequence[Digest | None]],
    calls: Sequence[Sequence[Any]],
) -> Key:
    """Return the key of the outputs of the last of some calls.

    Args:
        lane: the name of the lane that makes the calls (`validate.references.Lane`).
        programs: the digests that identify each method's program, keyed by method in the order in
            which the methods share state.
        calls: the method, the digest of the inputs and the seed of each call since the initial
            state.
    """
    return {
        **_environment(),
        "kind": "source-call",
        "lane": lane,
        "programs": [[method, *digests] for method, digests in programs.items()],
        "calls": [list(call) for call in calls],
    }


@cache
def _environment() -> Key:
    """Return the key fields for the toolchain and the host, looked up once."""
    return {**common_fields("measure"), "host": host()}


def hash_inputs(inputs: InputSet) -> Digest:
    """Hash the values of an input set and their nesting, but not how tensors lie in memory."""
    leaves, structure = pytree.tree_flatten((inputs.args, inputs.kwargs))
    return hash_json([str(structure), *map(_describe_leaf, leaves)])


def _describe_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return [type(leaf).__name__, repr(leaf)]
    plain = leaf.detach().contiguous().reshape(-1).view(torch.uint8)
    return [str(leaf.dtype), list(leaf.shape), hash_bytes(plain.numpy().tobytes())]
