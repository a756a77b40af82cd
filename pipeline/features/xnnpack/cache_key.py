"""Describes the part of a partition that XNNPACK's preprocess function reads.

It also remaps the debug handles of payloads.

That part was determined by reading executorch/backends/xnnpack and by changing partitions one thing
at a time; tests/features/preprocess_cache/test_key.py checks both. With a new ExecuTorch, both must
be tested again.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from pipeline.backends.entry import CacheScope
from pipeline.program import flatbuffer

# Metadata that passes copy but nothing reads, except for the parts that `read` returns.
UNREAD = frozenset({
    "desc", "eager_input_vals", "nn_module_stack", "original_aten", "source_fn_stack",
    "tensor_meta", "torch_fn", "xnn_partitioner_config",
})  # fmt: skip

# 0 is a flatbuffer's default, so a field that holds it is left out; xnnpack_preprocess.py writes
# 65535 for a node without a handle.
FIXED_HANDLES = frozenset({0, 65535})


def read(nodes: Sequence[torch.fx.Node]) -> list[Any]:
    """Return the parts of `UNREAD` that are read after all, node by node.

    `get_source_partitions` groups the nodes of each linear layer by a name, of which only equality
    counts; `tensor_meta` stands in for a missing `val` (exir/pass_base.py).
    """
    layers: dict[str, int] = {}
    values = []
    for node in nodes:
        node_values: list[Any] = []
        for name, source in _sources(node):
            qualified_name = _qualified_name(source)
            if (
                "linear" in qualified_name.lower()
            ):  # also a source that only contains this in its name
                node_values.append(
                    [layers.setdefault(name, len(layers)), qualified_name]
                )
        if "val" not in node.meta:
            node_values.append(node.meta.get("tensor_meta"))
        values.append(node_values)
    return values


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


_NEW_SUFFIXES = (
    "_fused_bn",
    "_bias_fused_bn",
    "_decomposed_bn_weight",
    "_decomposed_bn_bias",
)


def names_count(program: ExportedProgram) -> bool:
    """Return whether names can matter: whether batch norm is folded into other weights.

    The new weights are named after the old ones, with underscores for dots, and a weight whose name
    exists already is not made (backends/transforms/utils.py, `create_constant_placeholder`).
    """
    targets = [str(node.target) for node in program.graph.nodes]
    if not any("batch_norm" in target for target in targets):
        return False
    specs = program.graph_signature.input_specs
    tensors = {spec.target for spec in specs if spec.target is not None}
    new_names = []
    for tensor in tensors:
        stem = tensor.replace(".", "_")
        new_names += [stem + suffix for suffix in _NEW_SUFFIXES]
    old_names = {*tensors, *targets, *map(str, program.graph.nodes)}
    if len(set(new_names)) < len(new_names) or not old_names.isdisjoint(new_names):
        return True
    return not all(name.isidentifier() for name in new_names)


# The layout of a payload: xnnpack_graph_serialize.py (XNNHeader) and schema.fbs.
_MAGIC = slice(4, 8)
_START = slice(10, 14)
_XNODES = 1  # of XNNGraph
_DEBUG_HANDLE = 2  # of XNode


def remap_handles(payload: bytes, handles: Mapping[int, int]) -> bytes | None:
    """Return the payload with other debug handles, or None if it can't be remapped safely.

    The result is byte for byte the payload that those handles would have produced.
    """
    if payload[_MAGIC] != b"XH00":
        return None
    patched = bytearray(payload)
    start = int.from_bytes(payload[_START], "little")
    for node in flatbuffer.root(memoryview(payload)[start:]).tables(_XNODES):
        old = node.number(_DEBUG_HANDLE, "I")
        new = old if old in FIXED_HANDLES else handles.get(old)
        if (
            new is None
            or (new != old and new in FIXED_HANDLES)
            or not 0 <= new < 1 << 32
        ):
            return None
        if new != old:
            struct.pack_into("<I", patched, start + node.place(_DEBUG_HANDLE), new)
    return bytes(patched)


def make_scope() -> CacheScope:
    return CacheScope(names_count, UNREAD, read, remap_handles, FIXED_HANDLES)
