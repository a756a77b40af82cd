"""Hashes values of a program in edge dialect one after another, in a prefix-free form.

Fields are length-prefixed, and nothing goes through `repr` of unknown objects, `hash`, pickle or
set order. This module knows nothing of graphs or backends. A value that can't be hashed exactly has
no digest.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import sympy
import torch
from blake3 import blake3
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import graph_signature
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from pipeline.compile.inspect.storages import storage_bytes
from pipeline.store import digest
from pipeline.store.digest import Digest

_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_SIGNATURE = graph_signature.__name__
_PLAIN = frozenset({bool, int, str, type(None)})
_SHORT = 1 << 10  # bytes or characters of a field that is cached


class UndescribableError(Exception):
    """A partition holds something that a digest would have to guess at."""


class ValueHasher:
    """Hashes values, sizes and tensors.

    Something without a lasting name is numbered by its first appearance, so the digest still
    records which occurrences are the same thing.

    Attributes:
        keep_names: whether the names of nodes and tensors are hashed, rather than their numbers.
        storages: the number of each constant's storage, by the storage's address.
        contents: the digests of storages, by address.
        nodes: the numbers of nodes; the caller numbers a graph's nodes before hashing their values.
        symbols: the numbers of the symbols in sizes.
    """

    def __init__(self, keep_names: bool) -> None:
        self.keep_names = keep_names
        self.storages: dict[int, int] = {}
        self.contents: dict[int, Digest] = {}
        self.nodes: dict[Node, int] = {}
        self.symbols: dict[sympy.Symbol, int] = {}
        self._names: dict[str, int] = {}
        self._known: set[sympy.Symbol] = set()
        self._modes: dict[Any, int] = {}
        self._hasher = blake3()
        self._fields: list[bytes] = []  # not hashed yet; joined, since they are many

    def field(self, kind: str, data: bytes | str | int = b"") -> None:
        payload = data if type(data) is bytes else str(data)
        # Only short ones, since what is cached stays in memory.
        make = _field if len(payload) <= _SHORT else _field.__wrapped__
        self._fields.append(make(kind, payload))

    def digest(self) -> Digest:
        """Return the digest of everything so far."""
        self._hasher.update(b"".join(self._fields))
        self._fields.clear()
        return Digest(self._hasher.hexdigest())

    def name(self, name: str) -> None:
        if self.keep_names:
            self.field("name", name)
        else:
            self.field("name", number_of(self._names, name))

    def value(self, value: Any) -> None:
        kind: Any = type(value)
        if kind in _PLAIN:  # most values
            self._fields.append(_plain_field(kind, value))
        elif kind is list or kind is tuple:
            self._fields.append(_plain_field(kind, len(value)))
            for element in value:
                self.value(element)
        elif isinstance(value, Node):
            self.field("node", self.nodes[value])
        elif isinstance(value, (list, tuple)):
            self.field("tuple" if isinstance(value, tuple) else "list", len(value))
            for element in value:
                self.value(element)
        elif isinstance(value, FakeTensor):
            self.shape(value)
            self.mode(value.fake_mode)
            self.value(value.constant is not None)
            if value.constant is not None:  # passes compute with such a constant
                self.content(value.constant)
        elif isinstance(value, torch.Tensor):
            self.content(value)
        elif isinstance(value, Mapping):
            self.field("map", len(value))
            # Insertion order can differ between equal programs.
            for key in sorted(value, key=str):
                self.value(key)
                self.value(value[key])
        else:
            self.leaf(value)

    def leaf(self, value: Any) -> None:
        kind: Any = type(value)
        if isinstance(value, bytes):
            self.field(kind.__name__, value)
        elif isinstance(value, (bool, int, str)):
            self.field(kind.__name__, str(value))
        elif isinstance(value, float):
            self.field("float", value.hex())
        elif isinstance(value, enum.Enum):
            self.field("enum", f"{kind.__qualname__}.{value.name}")
        elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self.expression(getattr(value.node, "expr", None), value.node)
        elif isinstance(value, sympy.Basic):
            self.expression(value, None)
        elif isinstance(
            value, (torch.dtype, torch.device, torch.layout, torch.memory_format)
        ):
            self.field("torch", str(value))
        elif isinstance(getattr(value, "_schema", None), torch.FunctionSchema):
            self.field("operator", _operator_text(value))
        elif isinstance(value, type) or hasattr(value, "__qualname__"):
            self.field("function", f"{value.__module__}.{value.__qualname__}")
        elif isinstance(value, torch._ops.HigherOrderOperator):
            self.field("operator", value.name())
        elif dataclasses.is_dataclass(value):
            self.record(value)
        else:
            raise UndescribableError(f"a {kind.__module__}.{kind.__qualname__}")

    def record(self, value: Any) -> None:
        """Hash a dataclass field by field; some fields of a signature name nodes and tensors."""
        kind: Any = type(value)
        self.field("record", kind.__qualname__)
        naming: tuple[str, ...] = ()
        if kind.__module__ == _SIGNATURE:
            naming = ("name", "target")
        for name in _field_names(kind):
            field_value = getattr(value, name)
            self.value(name)
            if name in naming and isinstance(field_value, str):
                self.name(field_value)
            else:
                self.value(field_value)

    # Sizes

    def expression(self, expression: Any, node: Any) -> None:
        """Hash an expression; a symbol is hashed with its range and its size at export."""
        # Passes use that size if there is no upper bound (exir/sym_util.py).
        if not isinstance(expression, sympy.Basic):
            raise UndescribableError(f"a size of type {type(node).__qualname__}")
        names = {}
        for symbol in sympy.preorder_traversal(expression):
            if isinstance(symbol, sympy.Symbol):
                number = number_of(self.symbols, symbol)
                names[symbol] = sympy.Symbol(f"s{number}", **symbol.assumptions0)
        if self.keep_names:
            renamed = expression
        else:
            renamed = expression.xreplace(names)
        self.field("symbol", sympy.srepr(renamed))
        if node is None:
            return
        for symbol in names:
            if symbol not in self._known:
                self._known.add(symbol)
                self.value(_symbol_facts(symbol, node.shape_env))

    def mode(self, mode: Any) -> None:
        """Hash the fake-tensor mode, which decides the sizes of new tensors."""
        if mode not in self._modes:
            environment = mode.shape_env
            if environment is None:
                settings = None
            else:
                settings = environment.settings
            self.value([mode.static_shapes, settings])
        self.field("mode", number_of(self._modes, mode))

    # Tensors

    def shape(self, tensor: torch.Tensor) -> None:
        # Faster than `device` of a fake tensor, which is the result of an operator.
        device = getattr(tensor, "fake_device", None) or tensor.device
        # The order of dimensions follows from sizes and strides.
        sizes = (*tensor.shape, "stride", *tensor.stride())
        rest = (tensor.storage_offset(), str(device), tensor.requires_grad)
        if _PLAIN.issuperset(map(type, sizes)) and type(rest[0]) is int:
            self._fields.append(_shape_fields(tensor.dtype, sizes, rest))
            return
        self.field("tensor", str(tensor.dtype))
        self.value(list(sizes))
        self.value(list(rest))

    def constant(self, tensor: Any) -> None:
        self.content(tensor)
        self.field("storage", number_of(self.storages, tensor.untyped_storage()._cdata))

    def form(self, tensor: Any) -> None:
        """Hash everything about a tensor except its values."""
        kind = type(tensor)
        if (
            kind not in _TENSORS
            or tensor.layout is not torch.strided
            or tensor.is_quantized
        ):
            raise UndescribableError(f"a constant of type {kind.__qualname__}")
        if tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg():
            raise UndescribableError(
                f"a constant on {tensor.device}, conjugated or negated"
            )
        self.field("constant", kind.__qualname__)
        self.shape(tensor)

    def content(self, tensor: Any) -> None:
        """Hash a tensor with its whole storage, which XNNPACK uses as the content."""
        # See operators/node_visitor.py, `get_serialized_buffer_index`.
        self.form(tensor)
        storage = tensor.untyped_storage()
        if storage._cdata not in self.contents:
            content = storage_bytes(tensor).data
            self.contents[storage._cdata] = digest.hash_bytes(content)
        self.field("content", self.contents[storage._cdata])


# These functions are called for most values, and mostly with the same arguments.


@lru_cache(maxsize=1 << 14)
def _field(kind: str, data: bytes | str) -> bytes:
    payload = data if isinstance(data, bytes) else data.encode()
    return b"%b:%d:%b" % (kind.encode(), len(payload), payload)


@lru_cache(maxsize=1 << 14)
def _plain_field(kind: Any, value: Any) -> bytes:
    """Return the field of a plain value, or of a list or tuple of `value` elements."""
    text = str(value).encode()
    return b"%b:%d:%b" % (kind.__name__.encode(), len(text), text)


@lru_cache(maxsize=1 << 12)
def _shape_fields(
    dtype: torch.dtype, sizes: Sequence[Any], rest: Sequence[Any]
) -> bytes:
    """Return the fields of `ValueHasher.shape` for a tensor of fixed sizes."""
    fields = [_field("tensor", str(dtype))]
    for values in (sizes, rest):
        for value in (list(values), *values):
            kind: Any = type(value)
            fields.append(_plain_field(kind, len(value) if kind is list else value))
    return b"".join(fields)


@lru_cache(maxsize=1 << 12)
def _operator_text(operator: Any) -> str:
    return f"{type(operator).__name__} {operator._schema}"


@lru_cache(maxsize=1 << 8)
def _field_names(record: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(record)]


def _symbol_facts(symbol: sympy.Symbol, environment: ShapeEnv) -> list[Any]:
    try:
        hint = int(environment.guarding_hint_or_throw(symbol))
    except GuardOnDataDependentSymNode:
        raise UndescribableError(f"a size that depends on data ({symbol})") from None
    return [limits_record(environment.var_to_range.get(symbol)), hint]


def limits_record(limits: Any) -> list[str] | None:
    if limits is None:
        return None
    return [str(limits.lower), str(limits.upper)]


def number_of(numbers: dict[Any, int], key: Any) -> int:
    """Return the number of a key; a new key gets the next number."""
    return numbers.setdefault(key, len(numbers))
