"""Reads what a `.pte` asks of a runtime: its schema, and the kernels that it calls, with the dtypes
and dim orders of their tensors. Fields go by their places in ExecuTorch's schema/program.fbs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from pipeline.program.flatbuffer import CorruptError, Table, root
from pipeline.program.pte import SCALAR_TYPES

_T = TypeVar("_T")
_NULL = -1  # in a list of optional tensors
# Of the union KernelTypes.
_TENSOR, _TENSOR_LIST, _OPTIONAL_TENSOR_LIST = 5, 10, 11
_KERNEL_CALL = 1  # of the union InstructionArguments


@dataclass(frozen=True)
class TensorForm:
    """A tensor that a kernel is given; `scalar_type` is ExecuTorch's number of its dtype."""

    scalar_type: int
    dim_order: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """The dtype as torch calls it."""
        names = SCALAR_TYPES.split()
        known = 0 <= self.scalar_type < len(names)
        return names[self.scalar_type] if known else f"scalar type {self.scalar_type}"


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel: its operator, as `aten::add.out`, and its arguments, None for what is no
    tensor. A list of tensors counts as its first one. `instruction` is its index in the method."""

    instruction: int
    operator: str
    arguments: tuple[TensorForm | None, ...]

    @property
    def key(self) -> str:
        """The kernel key of selective build, `v1/6;0,1|6;0,1`, as gen_oplist writes it."""
        tensors = (each for each in self.arguments if each is not None)
        orders = (f"{t.scalar_type};{','.join(map(str, t.dim_order))}" for t in tensors)
        return f"v1/{'|'.join(orders)}".removesuffix("/")


@dataclass(frozen=True)
class RuntimeNeeds:
    """The needs of a `.pte` of the runtime that loads it.

    Attributes:
        identifier, version: the schema's, such as `ET12` and 0.
        calls: the calls of kernels, by method.
        memory_alignment: by method, the greatest power of two, in bytes, that divides the offsets
            of all tensors in planned memory; None where none stands behind another.
    """

    identifier: str
    version: int
    calls: dict[str, tuple[KernelCall, ...]]
    memory_alignment: dict[str, int | None]


def read_runtime_needs(data: memoryview) -> RuntimeNeeds:
    """Read what a `.pte` that `read_program` takes asks of a runtime. Raises CorruptError.

    The calls are those of `get_kernel_tensor_metadatas_from_execution_plan`
    (codegen/tools/selective_build.cpp).
    """
    table = root(data)
    calls, alignment = {}, {}
    for plan in table.tables(1):
        values = tuple(plan.tables(2))
        calls[plan.text(0)] = tuple(_calls(plan, values))
        alignment[plan.text(0)] = alignment_of(_offsets(values))
    identifier = bytes(data[4:8]).decode("ascii", "replace")
    return RuntimeNeeds(identifier, table.number(0, "I"), calls, alignment)


def alignment_of(offsets: Iterable[int]) -> int | None:
    """Return the greatest power of two that divides all offsets; None where all are 0."""
    return min((each & -each for each in offsets if each), default=None)


def _offsets(values: Iterable[Table]) -> Iterator[int]:
    for value in values:
        tensor = value.table(1) if value.number(0, "B") == _TENSOR else None
        if tensor is not None and (place := tensor.table(6)) is not None:
            yield place.number(1, "I") | place.number(2, "I") << 32


def _calls(plan: Table, values: tuple[Table, ...]) -> Iterator[KernelCall]:
    names = [".".join(filter(None, (each.text(0), each.text(1)))) for each in plan.tables(6)]

    @cache
    def form(index: int) -> TensorForm | None:
        """Return the form of a value, of which many calls may have the same."""
        value = _member(values, index, "value")
        kind, inner = value.number(0, "B"), value.table(1)
        if inner is None:
            return None
        if kind == _TENSOR:
            return TensorForm(inner.number(0, "b"), inner.numbers(3, "B"))
        if kind not in (_TENSOR_LIST, _OPTIONAL_TENSOR_LIST):
            return None
        for member in inner.numbers(0, "i"):
            tensor = None if member == _NULL else _member(values, member, "value")
            if tensor is not None and tensor.number(0, "B") == _TENSOR:
                return form(member)
        return None

    instructions = (each for chain in plan.tables(5) for each in chain.tables(2))
    for number, instruction in enumerate(instructions):
        call = instruction.table(1)
        if instruction.number(0, "B") == _KERNEL_CALL and call is not None:
            operator = _member(names, call.number(0, "i"), "operator")
            yield KernelCall(number, operator, tuple(map(form, call.numbers(1, "i"))))


def _member(several: Sequence[_T], index: int, noun: str) -> _T:
    if not 0 <= index < len(several):
        raise CorruptError(f"it refers to {noun} {index}, of {len(several)}")
    return several[index]
