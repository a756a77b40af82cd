"""What the plans of a `.pte` call, read from its flatbuffer alone: ExecuTorch's own reader needs
exir, which takes seconds to import. Offsets are those of schema/program.fbs."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from flatbuffers import encode, packer
from flatbuffers.number_types import Int32Flags, Uint8Flags, UOffsetTFlags
from flatbuffers.table import Table

_IDENTIFIER = (4, b"ET")
_PLANS = 1  # Program.execution_plan
_NAME, _VALUES, _INPUTS, _OPERATORS, _DELEGATES = 0, 2, 3, 6, 7  # of ExecutionPlan
_KIND, _VALUE = 0, 1  # of EValue
_TENSOR = 5  # among KernelTypes
_DIM_ORDER = 3  # of Tensor


@dataclass(frozen=True)
class Plan:
    """The backend ids of a method's delegates and the names of the operators that it calls
    otherwise, each in the order of the file."""

    delegates: tuple[str, ...]
    operators: tuple[str, ...]


def read_plans(pte: bytes) -> dict[str, Plan]:
    """By method; empty for what is not a program."""
    place, wanted = _IDENTIFIER
    if pte[place : place + len(wanted)] != wanted:
        return {}
    try:
        program = Table(pte, encode.Get(packer.uoffset, pte, 0))
        return {
            _string(plan, _NAME): Plan(
                tuple(_string(delegate, 0) for delegate in _tables(plan, _DELEGATES)),
                tuple(_operator(operator) for operator in _tables(plan, _OPERATORS)),
            )
            for plan in _tables(program, _PLANS)
        }
    except (struct.error, IndexError, TypeError, UnicodeDecodeError):
        return {}


Orders = tuple[tuple[int, ...] | None, ...]


def read_input_orders(pte: bytes) -> dict[str, Orders]:
    """By method and input, the dimensions from the outermost to the innermost, in which the method
    reads it; None for what is no tensor. Empty for what is not a program."""
    place, wanted = _IDENTIFIER
    if pte[place : place + len(wanted)] != wanted:
        return {}
    try:
        program = Table(pte, encode.Get(packer.uoffset, pte, 0))
        return {_string(plan, _NAME): _orders(plan) for plan in _tables(program, _PLANS)}
    except (struct.error, IndexError, TypeError, UnicodeDecodeError):
        return {}


def _orders(plan: Table) -> Orders:
    offset = plan.Offset(4 + 2 * _INPUTS)
    start, count = (plan.Vector(offset), plan.VectorLen(offset)) if offset else (0, 0)
    places = [plan.Get(Int32Flags, start + 4 * index) for index in range(count)]
    values = list(_tables(plan, _VALUES)) if places else []
    return tuple(_order(values[place]) for place in places)


def _order(value: Table) -> tuple[int, ...] | None:
    kind, union = (value.Offset(4 + 2 * field) for field in (_KIND, _VALUE))
    if not kind or not union or value.Get(Uint8Flags, value.Pos + kind) != _TENSOR:
        return None
    tensor = Table(value.Bytes, value.Indirect(value.Pos + union))
    offset = tensor.Offset(4 + 2 * _DIM_ORDER)
    if not offset:
        return ()
    start = tensor.Vector(offset)
    return tuple(tensor.Get(Uint8Flags, start + index) for index in range(tensor.VectorLen(offset)))


def _operator(table: Table) -> str:
    return ".".join(part for part in (_string(table, 0), _string(table, 1)) if part)


def _tables(table: Table, field: int) -> Iterator[Table]:
    offset = UOffsetTFlags.py_type(table.Offset(4 + 2 * field))
    if offset:
        start = table.Vector(offset)
        for index in range(table.VectorLen(offset)):
            yield Table(table.Bytes, table.Indirect(start + 4 * index))


def _string(table: Table, field: int) -> str:
    offset = UOffsetTFlags.py_type(table.Offset(4 + 2 * field))
    return bytes(table.String(table.Pos + offset)).decode() if offset else ""
