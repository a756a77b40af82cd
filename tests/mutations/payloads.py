"""What stands in the payloads of delegates, and where, so that it can be changed in place.

XNNPACK's is a flatbuffer behind a header (executorch/backends/xnnpack/serialization: `XNNHeader`,
schema.fbs). A field of a table that holds its default is left out and can't be set in place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flatbuffers.table import Table

# Members of XNodeUnion by their number, those whose tables are the same.
TWO_TO_ONE = {
    1: "XNNAdd", 8: "XNNDiv", 12: "XNNMinimum", 15: "XNNMultiply", 16: "XNNSubtract",
    26: "XNNMaximum",
}  # fmt: skip
ONE_TO_ONE = {
    4: "XNNSigmoid", 6: "XNNClamp", 17: "XNNFloor", 28: "XNNSquare", 30: "XNNAbs", 27: "XNNNegate",
    43: "XNNTanh",
}  # fmt: skip
FLOAT, HALF, QINT8, QCINT8, QCINT4, QBINT4 = 1, 2, 3, 6, 8, 10


@dataclass(frozen=True)
class Node:
    """An operation of a payload. `kind_at` is where the number of its kind stands, `inputs_at`
    where the ids of its inputs do, `most_at` where its greatest output does, if it has one."""

    kind: int
    kind_at: int
    inputs_at: tuple[int, ...]
    most_at: int | None


@dataclass(frozen=True)
class Value:
    """A tensor of a payload: `key` names its data, where it is a constant. Places are those of the
    scale and zero point of the tensor, or of the scales per channel, which may be named data."""

    kind: int
    key: str
    sizes: tuple[int, ...] = ()
    scale_at: int | None = None
    zero_at: int | None = None
    scales_at: tuple[int, ...] = ()
    scales_key: str = ""


class Xnnpack:
    """A payload to change in place."""

    def __init__(self, payload: bytes) -> None:
        self.bytes = bytearray(payload)
        start = int.from_bytes(payload[10:14], "little")
        self._root = Table(self.bytes, start + int.from_bytes(payload[start : start + 4], "little"))

    @staticmethod
    def fits(payload: bytes) -> bool:
        return payload[4:8] == b"XH00"

    def nodes(self) -> list[Node]:
        return [self._node(table) for table in _tables(self._root, 1)]

    def _node(self, table: Table) -> Node:
        kind_at, inner = _place(table, 0), _table(table, 1)
        assert kind_at is not None and inner is not None
        kind = self.bytes[kind_at]
        names = 2 if kind in TWO_TO_ONE else 1 if kind in ONE_TO_ONE else 0
        inputs = tuple(p for field in range(names) if (p := _place(inner, field)) is not None)
        limits = _table(table, 3)
        return Node(kind, kind_at, inputs, _place(limits, 1) if limits else None)

    def values(self) -> list[Value]:
        keys = [_string(table, 2) for table in _tables(self._root, 8)]
        found = []
        for table in _tables(self._root, 2):
            kind_at, inner = _place(table, 0), _table(table, 1)
            assert kind_at is not None and inner is not None
            if self.bytes[kind_at] == 1:
                found.append(self._value(inner, None, 0, keys))
            else:
                base, quant_at = _table(inner, 0), _place(inner, 1)
                assert base is not None and quant_at is not None
                found.append(self._value(base, _table(inner, 2), self.bytes[quant_at], keys))
        return found

    def _value(self, base: Table, quant: Table | None, how: int, keys: list[str]) -> Value:
        kind_at, data_at = _place(base, 0), _place(base, 3)
        kind = struct.unpack_from("<h", self.bytes, kind_at)[0] if kind_at is not None else 0
        data = struct.unpack_from("<I", self.bytes, data_at)[0] if data_at is not None else 0
        key = keys[data] if 0 < data < len(keys) else ""
        sizes = tuple(
            struct.unpack_from("<I", self.bytes, place)[0] for place in _numbers_at(base, 2)
        )
        if quant is None:
            return Value(kind, key, sizes)
        if how == 2:  # PerTensorQuant
            return Value(kind, key, sizes, _place(quant, 0), _place(quant, 1))
        if how != 1:
            return Value(kind, key, sizes)
        place = _place(quant, 2)  # PerChannelQuant
        held = struct.unpack_from("<I", self.bytes, place)[0] if place is not None else 0
        scales_key = keys[held] if 0 < held < len(keys) else ""
        return Value(kind, key, sizes, None, None, tuple(_numbers_at(quant, 0)), scales_key)

    def swap(self, one: int, other: int) -> None:
        """Exchanges four bytes at two places."""
        first, second = self.bytes[one : one + 4], self.bytes[other : other + 4]
        self.bytes[one : one + 4], self.bytes[other : other + 4] = second, first

    def float_at(self, place: int) -> float:
        return struct.unpack_from("<f", self.bytes, place)[0]

    def set_float(self, place: int, value: float) -> None:
        struct.pack_into("<f", self.bytes, place, value)

    def set_int(self, place: int, change: Callable[[int], int]) -> None:
        (old,) = struct.unpack_from("<i", self.bytes, place)
        struct.pack_into("<i", self.bytes, place, change(old))


def _place(table: Table, field: int) -> int | None:
    offset = table.Offset(4 + 2 * field)
    return table.Pos + offset if offset else None


def _table(table: Table, field: int) -> Table | None:
    place = _place(table, field)
    return Table(table.Bytes, table.Indirect(place)) if place is not None else None


def _tables(table: Table, field: int) -> Iterator[Table]:
    offset = table.Offset(4 + 2 * field)
    for index in range(table.VectorLen(offset) if offset else 0):
        yield Table(table.Bytes, table.Indirect(table.Vector(offset) + 4 * index))


def _numbers_at(table: Table, field: int) -> Iterator[int]:
    """The places of a vector's members, four bytes each."""
    offset = table.Offset(4 + 2 * field)
    for index in range(table.VectorLen(offset) if offset else 0):
        yield table.Vector(offset) + 4 * index


def _string(table: Table, field: int) -> str:
    offset = table.Offset(4 + 2 * field)
    return bytes(table.String(table.Pos + offset)).decode() if offset else ""
