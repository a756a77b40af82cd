"""Hashes the values in a program in a canonical form, in which no value begins another.

Fields are length-prefixed; nothing goes through `repr` of unknown objects, `hash`, pickle or set
order. What can't be hashed exactly is refused.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import sympy
import torch
from blake3 import blake3
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from pipeline.store import digest
from pipeline.store.digest import Digest

_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class UndescribableError(Exception):
    """A partition holds something that a digest would have to guess."""


class CanonicalHasher:
    """Hashes values; what has no lasting name gets the number of its first appearance.

    So it still counts what is the same as what. Nodes are numbered by the caller.
    """

    def __init__(self, keep_names: bool) -> None:
        self.hasher = blake3()
        self.keep_names = keep_names
        self.nodes: dict[torch.fx.Node, int] = {}
        self.symbols: dict[sympy.Symbol, int] = {}
        self.storages: dict[int, int] = {}
        self.contents: dict[int, Digest] = {}  # of storages
        self._names: dict[str, int] = {}
        self._known: set[sympy.Symbol] = set()
        self._modes: dict[Any, int] = {}

    def field(self, kind: str, data: bytes | str | int = b"") -> None:
        payload = data if isinstance(data, bytes) else str(data).encode()
        self.hasher.update(f"{kind}:{len(payload)}:".encode() + payload)

    def name(self, name: str) -> None:
        self.field("name", name if self.keep_names else number(self._names, name))

    def value(self, value: Any) -> None:
        if isinstance(value, torch.fx.Node):
            self.field("node", self.nodes[value])
        elif isinstance(value, Mapping):
            self.field("map", len(value))
            for key in sorted(value, key=str):
                self.value(key)
                self.value(value[key])
        elif isinstance(value, list | tuple):
            self.field("tuple" if isinstance(value, tuple) else "list", len(value))
            for element in value:
                self.value(element)
        elif isinstance(value, FakeTensor):
            self.shape(value)
            self.mode(value.fake_mode)
            self.value(value.constant is not None)
            if value.constant is not None:  # passes then compute with it
                self.content(value.constant)
        elif isinstance(value, torch.Tensor):
            self.content(value)
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
            self.symbolic(value.node)
        elif isinstance(value, sympy.Basic):
            self.expression(value, None)
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

    # Sizes

    def symbolic(self, node: Any) -> None:
        expression = getattr(node, "expr", None)
        if not isinstance(expression, sympy.Basic):
            raise UndescribableError(f"a size of type {type(node).__qualname__}")
        self.expression(expression, node.shape_env)

    def expression(self, expression: sympy.Basic, environment: ShapeEnv | None) -> None:
        """Hash an expression; a symbol counts with its range and the size that it had at export.

        Passes take that size where there is no upper bound (exir/sym_util.py).
        """
        found = [s for s in sympy.preorder_traversal(expression) if isinstance(s, sympy.Symbol)]
        names = {s: sympy.Symbol(f"s{number(self.symbols, s)}", **s.assumptions0) for s in found}
        renamed = expression if self.keep_names else expression.xreplace(names)
        self.field("symbol", sympy.srepr(renamed))
        if environment is None:
            return
        for symbol in names:
            if symbol not in self._known:
                self._known.add(symbol)
                self.value(_symbol_facts(symbol, environment))

    def mode(self, mode: Any) -> None:
        """Hash the fake-tensor mode: how it makes up the sizes of new tensors."""
        if mode not in self._modes:
            environment = mode.shape_env
            self.value([mode.static_shapes, None if environment is None else environment.settings])
        self.field("mode", number(self._modes, mode))

    # Tensors

    def shape(self, tensor: torch.Tensor) -> None:
        self.field("tensor", str(tensor.dtype))
        self.value([*tensor.shape, "stride", *tensor.stride(), "order", *tensor.dim_order()])
        self.value([tensor.storage_offset(), str(tensor.device), tensor.requires_grad])

    def constant(self, tensor: Any) -> None:
        self.content(tensor)
        self.field("storage", number(self.storages, tensor.untyped_storage()._cdata))

    def content(self, tensor: Any) -> None:
        """Hash a tensor with all of its storage, which XNNPACK takes for the content.

        See operators/node_visitor.py, `get_serialized_buffer_index`.
        """
        kind = type(tensor)
        if kind not in _TENSORS or tensor.layout is not torch.strided or tensor.is_quantized:
            raise UndescribableError(f"a constant of type {kind.__qualname__}")
        if tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg():
            raise UndescribableError(f"a constant on {tensor.device}, conjugated or negated")
        self.field("constant", kind.__qualname__)
        self.shape(tensor)
        storage = tensor.untyped_storage()
        if storage._cdata not in self.contents:
            flat = torch.empty(0, dtype=torch.uint8).set_(storage)
            self.contents[storage._cdata] = digest.hash_bytes(memoryview(flat.numpy()))
        self.field("content", self.contents[storage._cdata])


def _symbol_facts(symbol: sympy.Symbol, environment: ShapeEnv) -> list[Any]:
    limits = environment.var_to_range.get(symbol)
    try:
        hint = int(environment.guarding_hint_or_throw(symbol))
    except GuardOnDataDependentSymNode:
        raise UndescribableError(f"a size that depends on data ({symbol})") from None
    return [None if limits is None else [str(limits.lower), str(limits.upper)], hint]


def number(numbers: dict[Any, int], key: Any) -> int:
    """Return the number of a key, the next one if it is new."""
    return numbers.setdefault(key, len(numbers))
