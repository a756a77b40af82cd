"""Reads what a `.pte` requires of a runtime.

It requires support for its schema, and the kernels that it calls, with the dtypes and dim orders of
their tensors. Fields are identified by their positions in ExecuTorch's schema/program.fbs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from pipeline.program.flatbuffer import CorruptError, Table, root
from pipeline.program.scalar_types import SCALAR_TYPES

_T = TypeVar("_T")
_NULL = -1  # in a list of optional tensors
# Members of the union KernelTypes.
_TENSOR, _TENSOR_LIST, _OPTIONAL_TENSOR_LIST = 5, 10, 11
_KERNEL_CALL = 1  # of the union InstructionArguments


# The form of a tensor argument: ExecuTorch's number of its dtype, and its dim order.
TensorForm = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel.

    Attributes:
        instruction: its index in the method.
        operator: its name, such as `aten::add.out`.
        arguments: the form of each tensor, or of the first tensor of a list; None for other
            arguments.
    """

    instruction: int
    operator: str
    arguments: tuple[TensorForm | None, ...]

    @property
    def key(self) -> str:
        """The kernel key of selective build, `v1/6;0,1|6;0,1`, as gen_oplist writes it."""
        tensors = []
        for argument in self.arguments:
            if argument is not None:
                scalar_type, dim_order = argument
                tensors.append(f"{scalar_type};{','.join(map(str, dim_order))}")
        return f"v1/{'|'.join(tensors)}".removesuffix("/")

    @property
    def dtypes(self) -> tuple[str | None, ...]:
        """The dtypes of the arguments by their names in torch; None for other arguments."""
        names = SCALAR_TYPES.split()
        dtypes: list[str | None] = []
        for argument in self.arguments:
            if argument is None:
                dtypes.append(None)
            elif 0 <= argument[0] < len(names):
                dtypes.append(names[argument[0]])
            else:
                dtypes.append(f"scalar type {argument[0]}")
        return tuple(dtypes)


def read_schema(data: memoryview) -> tuple[str, int]:
    """Return the identifier and the version of a `.pte`'s schema, such as `ET12` and 0.

    Raises CorruptError.
    """
    return bytes(data[4:8]).decode("ascii", "replace"), root(data).number(0, "I")


def read_kernel_calls(data: memoryview) -> dict[str, tuple[KernelCall, ...]]:
    """Return the kernel calls of each method in a `.pte` that `read_program` accepts.

    Raises CorruptError.


    They match `get_kernel_tensor_metadatas_from_execution_plan`
    (codegen/tools/selective_build.cpp).
    """
    calls = {}
    for plan in root(data).tables(1):
        calls[plan.text(0)] = tuple(_calls(plan, tuple(plan.tables(2))))
    return calls


def read_memory_alignment(data: memoryview) -> int | None:
    """Return the alignment of planned memory in bytes, or None if all offsets are 0.

    It is the greatest power of two that divides the offsets of all tensors. Raises CorruptError.
    """
    offsets: list[int] = []
    for plan in root(data).tables(1):
        offsets += _offsets(plan.tables(2))
    return alignment_of(offsets)


def alignment_of(offsets: Iterable[int]) -> int | None:
    """Return the greatest power of two that divides all offsets, or None if all are 0."""
    return min((offset & -offset for offset in offsets if offset), default=None)


def _offsets(values: Iterable[Table]) -> Iterator[int]:
    for value in values:
        tensor = None
        if value.number(0, "B") == _TENSOR:
            tensor = value.table(1)
        allocation = None
        if tensor is not None:
            allocation = tensor.table(6)
        if allocation is not None:
            # The schema splits 64 bits into two fields, memory_offset_low and memory_offset_high.
            low = allocation.number(1, "I")
            high = allocation.number(2, "I")
            yield low | high << 32


def _operator_names(plan: Table) -> Iterator[str]:
    for operator in plan.tables(6):
        name = operator.text(0)
        overload = operator.text(1)
        yield ".".join(filter(None, (name, overload)))


def _calls(plan: Table, values: tuple[Table, ...]) -> Iterator[KernelCall]:
    names = list(_operator_names(plan))

    @cache
    def form(index: int) -> TensorForm | None:
        """Return the form of a value. Cached, since many calls share values."""
        value = _at(values, index, "value")
        kind = value.number(0, "B")
        content = value.table(1)
        if content is None:
            return None
        if kind == _TENSOR:
            return content.number(0, "b"), content.numbers(3, "B")
        if kind not in (_TENSOR_LIST, _OPTIONAL_TENSOR_LIST):
            return None
        for member in content.numbers(0, "i"):
            if member == _NULL:
                continue
            if _at(values, member, "value").number(0, "B") == _TENSOR:
                return form(member)
        return None

    number = 0
    for chain in plan.tables(5):
        for instruction in chain.tables(2):
            call = instruction.table(1)
            if instruction.number(0, "B") == _KERNEL_CALL and call is not None:
                operator = _at(names, call.number(0, "i"), "operator")
                arguments = map(form, call.numbers(1, "i"))
                yield KernelCall(number, operator, tuple(arguments))
            number += 1


def _at(sequence: Sequence[_T], index: int, noun: str) -> _T:
    if not 0 <= index < len(sequence):
        raise CorruptError(f"it refers to {noun} {index}, of {len(sequence)}")
    return sequence[index]
