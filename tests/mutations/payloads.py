"""XNNPACK's payloads as JSON, converted by ExecuTorch's flatc with XNNPACK's schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import (
    XNNHeader,
    _get_schema_bytes,
)
from executorch.exir._serialize._flatbuffer import _flatc_compile, _flatc_decompile

Json = dict[str, Any]

_AT = 32  # where the graph begins: behind the header, aligned to 16 bytes


def is_xnnpack(payload: bytes) -> bool:
    return payload[XNNHeader.MAGIC_OFFSET] == XNNHeader.EXPECTED_MAGIC


def read_graph(payload: bytes) -> Json:
    """Return the graph of a payload whose weights are named data."""
    header = XNNHeader.from_bytes(payload[: XNNHeader.EXPECTED_LENGTH])
    end = header.flatbuffer_offset + header.flatbuffer_size
    with TemporaryDirectory() as folder:
        schema, binary = Path(folder, "schema.fbs"), Path(folder, "graph.bin")
        schema.write_bytes(_get_schema_bytes())
        binary.write_bytes(payload[header.flatbuffer_offset : end])
        _flatc_decompile(folder, str(schema), str(binary))
        text = Path(folder, "graph.json").read_text()
    return json.loads(re.sub(r": (-?)inf\b", r": \1Infinity", text))


def write_graph(graph: Json) -> bytes:
    with TemporaryDirectory() as folder:
        schema, source = Path(folder, "schema.fbs"), Path(folder, "graph.json")
        schema.write_bytes(_get_schema_bytes())
        source.write_text(json.dumps(graph))
        _flatc_compile(folder, str(schema), str(source))
        data = Path(folder, "graph.bin").read_bytes()
    size = len(data)
    data += bytes(-size % 16)
    header = XNNHeader(_AT, size, _AT + len(data), 0).to_bytes()
    return header.ljust(_AT, b"\0") + data


def tensors(graph: Json) -> list[tuple[Json, Json, str]]:
    """Return each tensor with its quantization, and the key of its data if it is constant."""
    found = []
    for value in graph["xvalues"]:
        union = value["xvalue_union"]
        tensor = union.get("tensor_value", union)
        key = data_key(graph, tensor["constant_buffer_idx"])
        found.append((tensor, union.get("quant_params", {}), key))
    return found


def data_key(graph: Json, index: int) -> str:
    return graph["constant_data"][index].get("named_key", "") if index else ""
