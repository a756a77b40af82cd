"""The digest of a partition: all that a backend's preprocess function can see of it.

A partition is a program in edge dialect. Its digest covers operators with their schemas, the whole
wiring of arguments, tensor metadata, signature, ranges and the content of constants. Names of nodes
and debug handles count, since delegates keep them. Fields are length-prefixed; nothing goes through
`repr` of unknown objects, `hash`, pickle or set order. What can't be described has no digest.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch
from blake3 import blake3
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from pipeline.digest import Digest

# Metadata that differs from one run to the next and that no preprocess function reads: stack traces
# and object ids, autograd's counter, the number that a partitioner gave the partition.
_VOLATILE = frozenset({"delegation_tag", "from_node", "seq_nr", "stack_trace"})


class UndescribableError(Exception):
    """The partition holds something of which a digest would have to guess."""


def partition_digest(
    backend_id: str,
    program: ExportedProgram,
    compile_specs: Iterable[CompileSpec],
    toolchain: Mapping[str, str],
) -> Digest:
    """Names what preprocessing this gives, with this toolchain. Raises UndescribableError."""
    writer = _Writer()
    writer.value([backend_id, dict(toolchain)])
    writer.value([[spec.key, bytes(spec.value)] for spec in compile_specs])
    writer.graph_module(program.graph_module)
    writer.value(program.graph_signature)
    ranges = [(str(s), str(r.lower), str(r.upper)) for s, r in program.range_constraints.items()]
    writer.value(sorted(ranges))
    for tensors in (program.state_dict, program.constants):
        writer.value(sorted(tensors))
        for name in sorted(tensors):
            writer.tensor_content(tensors[name])
    return Digest(writer.hasher.hexdigest())


class _Writer:
    """Feeds a hasher with a canonical, prefix-free spelling of values."""

    def __init__(self) -> None:
        self.hasher = blake3()
        self._numbers: dict[torch.fx.Node, int] = {}

    def field(self, kind: str, data: bytes | str = b"") -> None:
        payload = data.encode() if isinstance(data, str) else data
        self.hasher.update(f"{kind}:{len(payload)}:".encode() + payload)

    def graph_module(self, module: torch.fx.GraphModule) -> None:
        nodes = list(module.graph.nodes)
        self.field("graph", str(len(nodes)))
        for number, node in enumerate(nodes):
            self._numbers[node] = number
            self.field(node.op, node.name)
            self.target(module, node)
            self.value(node.args)
            self.value(node.kwargs)
            self.value({k: v for k, v in node.meta.items() if k not in _VOLATILE})

    def target(self, module: torch.fx.GraphModule, node: torch.fx.Node) -> None:
        if node.op == "get_attr":
            value = getattr(module, str(node.target), None)
            self.field("attribute", str(node.target))
            if isinstance(value, torch.fx.GraphModule):
                self.graph_module(value)
            elif isinstance(value, torch.Tensor):
                self.tensor_content(value)
            else:
                raise UndescribableError(f"attribute {node.target} is {type(value).__name__}")
        else:
            self.value(node.target)

    def value(self, value: Any) -> None:
        if isinstance(value, torch.fx.Node):
            self.field("node", str(self._numbers[value]))
        elif isinstance(value, Mapping):
            self.field("map", str(len(value)))
            for key in sorted(value, key=str):
                self.value(key)
                self.value(value[key])
        elif isinstance(value, list | tuple | torch.fx.immutable_collections.immutable_list):
            self.field("list", str(len(value)))
            for element in value:
                self.value(element)
        elif isinstance(value, torch.Tensor):
            self.tensor_shape(value)
        else:
            self.leaf(value)

    def leaf(self, value: Any) -> None:
        if isinstance(value, bool | int | str | bytes | None):
            self.field(type(value).__name__, value if isinstance(value, bytes) else str(value))
        elif isinstance(value, float):
            self.field("float", value.hex())
        elif isinstance(value, enum.Enum):
            self.field("enum", f"{type(value).__qualname__}.{value.name}")
        elif isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            self.field("symbol", str(value.node.expr))
        elif isinstance(value, sympy.Basic):
            self.field("symbol", str(value))
        elif isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
            self.field("torch", str(value))
        elif isinstance(schema := getattr(value, "_schema", None), torch.FunctionSchema):
            self.field("operator", f"{type(value).__name__} {schema}")
        elif isinstance(value, type) or hasattr(value, "__qualname__"):
            self.field("function", f"{value.__module__}.{value.__qualname__}")
        elif isinstance(value, torch._ops.HigherOrderOperator):
            self.field("operator", value.name())
        elif dataclasses.is_dataclass(value):
            self.field("record", type(value).__qualname__)
            for field in dataclasses.fields(value):
                self.value([field.name, getattr(value, field.name)])
        else:
            raise UndescribableError(f"a {type(value).__module__}.{type(value).__qualname__}")

    def tensor_shape(self, tensor: torch.Tensor) -> None:
        self.field("tensor", str(tensor.dtype))
        self.value([*tensor.shape, "stride", *tensor.stride(), "order", *tensor.dim_order()])
        self.value([str(tensor.device), tensor.requires_grad])

    def tensor_content(self, tensor: Any) -> None:
        if not isinstance(tensor, torch.Tensor) or type(tensor) not in (
            torch.Tensor,
            torch.nn.Parameter,
            torch.nn.Buffer,
        ):
            raise UndescribableError(f"a constant of type {type(tensor).__qualname__}")
        self.tensor_shape(tensor)
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        self.field("content", str(flat.numel()))
        self.hasher.update(memoryview(flat.numpy()))
