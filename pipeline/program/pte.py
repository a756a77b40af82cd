"""Reads the layout of a `.pte` or `.ptd` file from its headers and flatbuffer alone.

Fields are numbered as in ExecuTorch's schema/program.fbs and extension/flat_tensor/serialize/
flat_tensor.fbs. Headers are read as exir/_serialize/_program.py (`_ExtendedHeader`) and extension/
flat_tensor/serialize/serialize.py (`FlatTensorHeader`) write them. Weights aren't read, and exir,
which takes seconds to import, isn't needed.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.program.flatbuffer import CorruptError, Span, Table, number, root
from pipeline.program.scalar_types import SCALAR_TYPES

_MOST_DIMENSIONS = 16  # runtime/core/exec_aten/util/tensor_dimension_limit.h
_TENSOR = 5  # in the union KernelTypes
_EXTERNAL = 1  # TensorDataLocation
_INLINE = 0  # DataLocation


@dataclass(frozen=True)
class TensorType:
    """The type of a tensor: its dtype as torch names it, its shape, and its bytes per element.

    A dynamic size is the greatest that the method accepts.
    """

    dtype: str
    shape: tuple[int, ...]
    item: int

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.item


# The types of tensors whose data a file holds, each with its index among the file's constants or
# mutable data.
StoredTypes = tuple[tuple[int, TensorType], ...]
Orders = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True)
class PlanFacts:
    """Facts about a method's plan.

    Attributes:
        operators: the operators called outside delegates, such as `aten::add.out`.
        delegates: the backend and payload of each delegate; the payload is None if it is empty.
        input_orders: the order in which the method reads the dimensions of each input, from the
            outermost to the innermost; None for an input that isn't a tensor.
        constants, mutable: the tensors whose initial data is in the file.
        external: the keys of tensors stored outside the file.
        arenas: the bytes of planned memory in each arena, starting with arena 1; the runtime
            reserves arena 0 for constants.
        arenas_used: the numbers of the arenas that hold tensors.
    """

    name: str
    instructions: int
    input_orders: Orders
    operators: tuple[str, ...]
    delegates: tuple[tuple[str, Span | None], ...]
    constants: StoredTypes
    mutable: StoredTypes
    external: tuple[str, ...]
    arenas: tuple[int, ...]
    arenas_used: frozenset[int]


@dataclass(frozen=True)
class FileLayout:
    """The layout of a `.pte`, or of a `.ptd`, which has only named data.

    Attributes:
        program: the flatbuffer with its header; it may contain payloads.
        named: the key, segment and type of each named entry; only the entries of a `.ptd` have
            types.
        constants, mutable: the spans of constants and mutable data in index order, each with the
            padding after it.
    """

    program: Span
    segments: tuple[Span, ...]
    named: tuple[tuple[str, int, TensorType | None], ...]
    constants: tuple[Span, ...] = ()
    constant_segments: tuple[int, ...] = ()
    mutable: tuple[Span, ...] = ()
    mutable_segments: tuple[int, ...] = ()
    plans: tuple[PlanFacts, ...] = ()


def read_program(data: memoryview) -> FileLayout:
    """Read the layout of a `.pte`. Raises CorruptError if it is damaged or another kind of file."""
    if len(data) < 8 or data[4:6] != b"ET":
        raise CorruptError("it is not an ExecuTorch program")
    program = Span(0, len(data))
    base = len(data)
    if data[8:12] == b"eh00":
        program = Span(0, number(data, 16, "Q"))
        base = number(data, 24, "Q")
        if not 32 <= program.end <= base <= len(data):
            raise CorruptError("its header contradicts its size")
    # Sliced, so that no offset in the flatbuffer can point outside it.
    table = root(data[: program.end])
    segments = _segments(table, 4, base, len(data))
    constants, constant_segments = _constants(table, segments)
    mutable: list[Span] = []
    mutable_segments = []
    for part in table.tables(6):
        segment = part.number(0, "I")
        mutable_segments.append(segment)
        mutable += _parts(_get_segment(segments, segment), part.numbers(1, "Q"))
    named = []
    for entry in table.tables(7):
        key = entry.text(0)
        segment = entry.number(1, "I")
        _get_segment(segments, segment)
        named.append((key, segment, None))
    inline = _spans(table, 3)
    plans = [_plan(plan, segments, inline) for plan in table.tables(1)]
    return FileLayout(
        program,
        segments,
        tuple(named),
        constants,
        constant_segments,
        tuple(mutable),
        tuple(mutable_segments),
        tuple(plans),
    )


def _constants(
    table: Table, segments: tuple[Span, ...]
) -> tuple[tuple[Span, ...], tuple[int, ...]]:
    """Return the constants of a `.pte`, and the number of their segment if they have one."""
    subsegment = table.table(5)
    if subsegment is None or not (offsets := subsegment.numbers(1, "Q")):
        return _spans(table, 2), ()
    segment = subsegment.number(0, "I")
    return _parts(_get_segment(segments, segment), offsets), (segment,)


def read_plans(pte: memoryview) -> dict[str, PlanFacts]:
    """Return the plans of a `.pte` by method, or an empty dict if it isn't a valid program."""
    try:
        return {plan.name: plan for plan in read_program(pte).plans}
    except CorruptError:
        return {}


def read_data(data: memoryview) -> FileLayout:
    """Read the layout of a `.ptd`. Raises CorruptError if it is damaged or another kind of file."""
    if len(data) < 8 or data[4:6] != b"FT":
        raise CorruptError("it is not an ExecuTorch data file")
    if data[8:12] != b"FH01":
        raise CorruptError("it has no readable header")
    program = Span(0, number(data, 16, "Q") + number(data, 24, "Q"))
    base = number(data, 32, "Q")
    if not 48 <= program.end <= base <= len(data):
        raise CorruptError("its header contradicts its size")
    table = root(data[: program.end])
    segments = _segments(table, 1, base, len(data))
    named = []
    for entry in table.tables(2):
        layout = entry.table(2)
        segment = entry.number(1, "I")
        _get_segment(segments, segment)
        tensor_type = None
        if layout is not None:
            tensor_type = _type(layout.number(0, "b"), layout.numbers(1, "i"))
        named.append((entry.text(0), segment, tensor_type))
    return FileLayout(program, segments, tuple(named))


def _spans(table: Table, field: int) -> tuple[Span, ...]:
    return tuple(entry.span(0) or Span(0, 0) for entry in table.tables(field))


def _segments(table: Table, field: int, base: int, size: int) -> tuple[Span, ...]:
    segments = []
    for entry in table.tables(field):
        segment = Span(base + entry.number(0, "Q"), entry.number(1, "Q"))
        if segment.end > size:
            raise CorruptError(f"it has {size} bytes, and a segment beyond its end")
        segments.append(segment)
    return tuple(segments)


def _get_segment(segments: tuple[Span, ...], index: int) -> Span:
    if index >= len(segments):
        raise CorruptError(f"it refers to segment {index}, of {len(segments)}")
    return segments[index]


def _parts(segment: Span, offsets: tuple[int, ...]) -> tuple[Span, ...]:
    """Split a segment into the parts that begin at these offsets."""
    limits = list(itertools.pairwise((*offsets, segment.size)))
    if any(not start <= end <= segment.size for start, end in limits):
        raise CorruptError("the parts of a segment overlap")
    return tuple(Span(segment.offset + start, end - start) for start, end in limits)


def _plan(
    table: Table, segments: tuple[Span, ...], inline: tuple[Span, ...]
) -> PlanFacts:
    # The tensor of each value, or None if the value has another type.
    tensors = [
        value.table(1) if value.number(0, "B") == _TENSOR else None
        for value in table.tables(2)
    ]
    operators = []
    for operator in table.tables(6):
        name = operator.text(0)
        overload = operator.text(1)
        operators.append(".".join(filter(None, (name, overload))))
    constants, mutable, external = _stored_tensors(tensors)
    return PlanFacts(
        name=table.text(0),
        instructions=sum(len(chain.numbers(2, "I")) for chain in table.tables(5)),
        input_orders=tuple(_input_orders(table, tensors)),
        operators=tuple(operators),
        delegates=tuple(
            _delegate(delegate, segments, inline) for delegate in table.tables(7)
        ),
        constants=constants,
        mutable=mutable,
        external=external,
        arenas=table.numbers(8, "q")[1:],
        arenas_used=frozenset(_planned_arenas(tensors)),
    )


def _input_orders(
    table: Table, tensors: list[Table | None]
) -> Iterator[tuple[int, ...] | None]:
    for index in table.numbers(3, "i"):
        if not 0 <= index < len(tensors):
            raise CorruptError(
                f"an input of its method is beyond its {len(tensors)} values"
            )
        tensor = tensors[index]
        yield None if tensor is None else tensor.numbers(3, "B")


def _delegate(
    table: Table, segments: tuple[Span, ...], inline: tuple[Span, ...]
) -> tuple[str, Span | None]:
    reference = table.table(1)
    if reference is None:
        return table.text(0), None
    index = reference.number(1, "I")
    if reference.number(0, "b") != _INLINE:
        payload = _get_segment(segments, index)
    elif index < len(inline):
        payload = inline[index]
    else:
        raise CorruptError(f"it refers to payload {index}, of {len(inline)}")
    return table.text(0), payload if payload.size else None


def _planned_arenas(tensors: Iterable[Table | None]) -> Iterator[int]:
    for tensor in filter(None, tensors):
        allocation = tensor.table(6)
        if allocation is not None:
            yield allocation.number(0, "I")


def _stored_tensors(
    tensors: Iterable[Table | None],
) -> tuple[StoredTypes, StoredTypes, tuple[str, ...]]:
    """Return the constants, the mutable tensors, and the keys of the external tensors."""
    constants = []
    mutable = []
    external = []
    for tensor in filter(None, tensors):
        extra = tensor.table(9)
        key = ""
        if extra is not None and extra.number(2, "b") == _EXTERNAL:
            key = extra.text(1)
        index = tensor.number(5, "I")
        # Buffer 0 is empty; tensors without data refer to it.
        if index or key:
            tensor_type = _type(tensor.number(0, "b"), tensor.numbers(2, "i"))
            if key:
                external.append(key)
            elif tensor.table(6) is None:
                constants.append((index, tensor_type))
            else:
                mutable.append((index, tensor_type))
    return tuple(constants), tuple(mutable), tuple(external)


def _type(scalar_type: int, sizes: tuple[int, ...]) -> TensorType:
    if len(sizes) > _MOST_DIMENSIONS or any(size < 0 for size in sizes):
        raise CorruptError("it has a tensor of impossible sizes")
    names = SCALAR_TYPES.split()
    if not 0 <= scalar_type < len(names):
        return TensorType(f"scalar type {scalar_type}", sizes, 0)
    name = names[scalar_type]
    bits = re.search(r"\d+", name)
    return TensorType(name, sizes, max(1, int(bits[0]) // 8) if bits else 1)
