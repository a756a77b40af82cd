"""The part of a partition that XNNPACK's preprocess function reads, and payloads' debug handles.

Found by reading executorch/backends/xnnpack and by changing partitions one thing at a time;
tests/compile/preprocess/test_key.py holds both to it. Nothing here outlives a new ExecuTorch
untested.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from pipeline.backends.entry import CacheScope
from pipeline.program import flatbuffer

# Metadata that passes copy and that nothing reads, but for what `read` finds in it.
UNREAD = frozenset({
    "desc", "eager_input_vals", "nn_module_stack", "original_aten", "source_fn_stack",
    "tensor_meta", "torch_fn", "xnn_partitioner_config",
})  # fmt: skip

# 0 is a flatbuffer's default, so a field that holds it is left out; 65535 is what
# xnnpack_preprocess.py writes for a node without a handle.
FIXED_HANDLES = frozenset({0, 65535})


def read(nodes: Sequence[torch.fx.Node]) -> list[Any]:
    """Return what it reads of `UNREAD`, node by node.

    `get_source_partitions` groups the nodes of each linear layer, by a name of which only
    equality counts; `tensor_meta` stands in for a missing `val` (exir/pass_base.py).
    """
    layers: dict[str, int] = {}
    return [
        [
            [layers.setdefault(name, len(layers)), _qualified_name(source)]
            for name, source in _sources(node)
            if "linear" in _qualified_name(source).lower()  # what only sounds like one counts too
        ]
        + ([node.meta.get("tensor_meta")] if "val" not in node.meta else [])
        for node in nodes
    ]


def _sources(node: torch.fx.Node) -> list[tuple[str, Any]]:
    functions = node.meta.get("source_fn_stack")
    if functions is not None:
        return [functions[-1]]
    modules = node.meta.get("nn_module_stack") if node.op == "call_function" else None
    return [list(modules.values())[-1]] if modules else []


def _qualified_name(source: Any) -> str:
    if isinstance(source, str):
        return source
    bases = source.__mro__ if isinstance(source, type) else (source,)
    return " ".join(f"{base.__module__}.{base.__qualname__}" for base in bases)


_MADE = ("_fused_bn", "_bias_fused_bn", "_decomposed_bn_weight", "_decomposed_bn_bias")


def names_count(program: ExportedProgram) -> bool:
    """Return whether names can matter: where batch norm is folded into other weights.

    The new weights are named after the old ones with dots made underscores, and one whose name is
    taken is not made (backends/transforms/utils.py, `create_constant_placeholder`).
    """
    if not any("batch_norm" in str(node.target) for node in program.graph.nodes):
        return False
    specs = program.graph_signature.input_specs
    tensors = {spec.target for spec in specs if spec.target is not None}
    made = [name.replace(".", "_") + suffix for name in tensors for suffix in _MADE]
    taken = tensors | {str(each) for node in program.graph.nodes for each in (node, node.target)}
    clash = len(set(made)) < len(made) or not taken.isdisjoint(made)
    return clash or not all(name.isidentifier() for name in made)


# The layout of a payload: xnnpack_graph_serialize.py (XNNHeader) and schema.fbs.
_MAGIC = slice(4, 8)
_START = slice(10, 14)
_XNODES = 1  # of XNNGraph
_DEBUG_HANDLE = 2  # of XNode


def remap_handles(payload: bytes, handles: Mapping[int, int]) -> bytes | None:
    """Return the payload with other debug handles, byte for byte as if it had been made with them,
    or None where that can't be promised."""
    if payload[_MAGIC] != b"XH00":
        return None
    patched = bytearray(payload)
    start = int.from_bytes(payload[_START], "little")
    for node in flatbuffer.root(memoryview(payload)[start:]).tables(_XNODES):
        old = node.number(_DEBUG_HANDLE, "I")
        new = old if old in FIXED_HANDLES else handles.get(old)
        if new is None or (new != old and new in FIXED_HANDLES) or not 0 <= new < 1 << 32:
            return None
        if new != old:
            struct.pack_into("<I", patched, start + node.place(_DEBUG_HANDLE), new)
    return bytes(patched)


def make_scope() -> CacheScope:
    return CacheScope(names_count, UNREAD, read, remap_handles, FIXED_HANDLES)
