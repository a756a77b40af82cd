"""What the plans of a `.pte` call, read from its flatbuffer alone: ExecuTorch's own reader needs
exir, which takes seconds to import. Offsets are those of schema/program.fbs."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from flatbuffers import encode, packer
from flatbuffers.number_types import UOffsetTFlags
from flatbuffers.table import Table

_IDENTIFIER = (4, b"ET")
_PLANS = 1  # Program.execution_plan
_NAME, _OPERATORS, _DELEGATES = 0, 6, 7  # of ExecutionPlan


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
