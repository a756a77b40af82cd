"""Read what a `.pte` requires of a runtime.

That is its schema, and the kernels that it calls, with the dtypes and dim orders of their tensors.
Fields go by their places in ExecuTorch's schema/program.fbs.
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
# Of the union KernelTypes.
_TENSOR, _TENSOR_LIST, _OPTIONAL_TENSOR_LIST = 5, 10, 11
_KERNEL_CALL = 1  # of the union InstructionArguments


@dataclass(frozen=True)
class TensorForm:
    """A tensor argument of a kernel; `scalar_type` is ExecuTorch's number of its dtype."""

    scalar_type: int
    dim_order: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """The dtype as torch calls it."""
        names = SCALAR_TYPES.split()
        if 0 <= self.scalar_type < len(names):
            return names[self.scalar_type]
        return f"scalar type {self.scalar_type}"


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel.

    Attributes:
        instruction: its index in the method.
        operator: as `aten::add.out`.
        arguments: the form of each tensor, of a list its first one; None for other arguments.
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
                order = ",".join(map(str, argument.dim_order))
                tensors.append(f"{argument.scalar_type};{order}")
        return f"v1/{'|'.join(tensors)}".removesuffix("/")


@dataclass(frozen=True)
class RuntimeNeeds:
    """What a `.pte` requires of the runtime that loads it.

    Attributes:
        identifier, version: the schema's, such as `ET12` and 0.
        calls: the calls of kernels, by method.
        memory_alignment: by method, the greatest power of two, in bytes, that divides the offsets
            of all tensors in planned memory; None where all offsets are 0.
    """

    identifier: str
    version: int
    calls: dict[str, tuple[KernelCall, ...]]
    memory_alignment: dict[str, int | None]


def read_runtime_needs(data: memoryview) -> RuntimeNeeds:
    """Read what a `.pte` that `read_program` accepts requires of a runtime. Raises CorruptError.

    The calls are those of `get_kernel_tensor_metadatas_from_execution_plan`
    (codegen/tools/selective_build.cpp).
    """
    table = root(data)
    calls = {}
    alignment = {}
    for plan in table.tables(1):
        values = tuple(plan.tables(2))
        calls[plan.text(0)] = tuple(_calls(plan, values))
        alignment[plan.text(0)] = alignment_of(_offsets(values))
    identifier = bytes(data[4:8]).decode("ascii", "replace")
    return RuntimeNeeds(identifier, table.number(0, "I"), calls, alignment)


def alignment_of(offsets: Iterable[int]) -> int | None:
    """Return the greatest power of two that divides all offsets; None where all are 0."""
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
            # The schema keeps 64 bits in two fields, memory_offset_low and memory_offset_high.
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
            return TensorForm(content.number(0, "b"), content.numbers(3, "B"))
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
