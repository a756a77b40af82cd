"""Finds results of `torch.cond` that an emitted plan overwrites before it reads them.

A branch hands over its result by a move: the result stays in the memory planned for the branch, and
nothing is copied to the memory planned for the result. ExecuTorch plans the bodies of all control
flow in the same memory, so the next body overwrites it (executorch #21490). A statically planned
view of the result reads the memory planned for the result, which nothing fills.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from executorch.exir import schema

from pipeline.program.plan_values import (
    count_delegate_results,
    used_values,
    written_values,
)
from pipeline.program.scalar_types import SCALAR_TYPES

_COPIES = frozenset({"clone", "_clone_dim_order", "_to_dim_order_copy", "copy"})
_VIEW = "executorch_prim::et_view"
Region = tuple[int, int, int]  # the arena, the first byte, and the byte after the last


@dataclass(frozen=True)
class LostResult:
    """A result of `torch.cond` that is lost before it is read.

    Attributes:
        value: the index of the result among the plan's values.
        move: the index of the last instruction that hands over the result.
        source: the index of the value that the branch returned.
        lost_at: the index of the instruction that overwrites the result; None if a view reads
            memory that nothing fills.
        read_at: the index of the instruction that reads the result; for an output, the number of
            instructions.
    """

    value: int
    move: int
    source: int
    lost_at: int | None
    read_at: int


def find_lost_results(plan: schema.ExecutionPlan) -> list[LostResult]:
    """Return the results of `torch.cond` that are lost before they are read.

    The list has the first loss of each result, in the order of their moves. Values with dynamic
    sizes count with their largest sizes.
    """
    if len(plan.chains) != 1:
        return []
    calls = [instruction.instr_args for instruction in plan.chains[0].instructions]
    if not any(isinstance(call, schema.MoveCall) for call in calls):
        return []
    memory = _Memory(plan)
    losses = []
    for value in sorted(memory.moves, key=memory.moves.__getitem__):
        loss = memory.find_loss(value)
        if loss is not None:
            losses.append(loss)
    return losses


class _Memory:
    """The memory of a plan's values, and the instructions that read and write it.

    Attributes:
        moves: by value, the last instruction that gives it the memory of another value.
        sources: by value, the values whose memory it may have after that.
    """

    def __init__(self, plan: schema.ExecutionPlan) -> None:
        instructions = plan.chains[0].instructions
        numbers = range(len(instructions))
        results = count_delegate_results(plan, instructions)
        self._plan = plan
        self._calls = [instruction.instr_args for instruction in instructions]
        self._writes = [written_values(plan, number, results) for number in numbers]
        self._reads = [self._find_reads(number) for number in numbers]
        self._reads.append([*plan.outputs])
        self.moves: dict[int, int] = {}
        self.sources: dict[int, list[int]] = defaultdict(list)
        for number, call in enumerate(self._calls):
            if isinstance(call, schema.MoveCall):
                self._add_move(number, call.move_from, call.move_to)
            elif self._kernel(number) == _VIEW:
                self._add_move(number, call.args[0], call.args[-1])

    def _add_move(self, number: int, source: int, target: int) -> None:
        if source == target:  # it stays where it is
            return
        self.moves[target] = number
        self.sources[target].append(source)

    def find_loss(self, value: int) -> LostResult | None:
        """Return how the value of a move is lost, or None if it isn't."""
        move = self.moves[value]
        regions = self.find_regions(value)
        source = self.sources[value][-1]
        for reader in range(move + 1, len(self._reads)):
            if value in self._reads[reader]:
                writer = self._find_writer(regions, move, reader)
                if writer is not None:
                    return LostResult(value, move, source, writer, reader)
            elif self._views_unfilled(value, reader):
                return LostResult(value, move, source, None, reader)
        return None

    def find_regions(self, value: int) -> list[Region]:
        """Return the memory regions where a value may be.

        For a moved value, these are the regions of the branches' results.
        """
        regions: list[Region] = []
        waiting = [value]
        visited = set()
        while waiting:
            place = waiting.pop()
            if place in visited:  # loops may move values in a cycle
                continue
            visited.add(place)
            if place in self.sources:
                waiting += self.sources[place]
            elif place in self._planned:
                regions.append(self._planned[place])
        return regions

    def _written_regions(self, number: int) -> list[Region]:
        regions = []
        for value in self._writes[number]:
            regions += self.find_regions(value)
        return regions

    def _find_reads(self, number: int) -> list[int]:
        call = self._calls[number]
        if isinstance(call, schema.MoveCall):
            return [call.move_from]
        if isinstance(call, schema.JumpFalseCall):
            return [call.cond_value_index]
        written = self._writes[number]
        reads = [
            index for index in used_values(self._plan, call) if index not in written
        ]
        # An operator that writes to a buffer in place also reads it.
        args = getattr(call, "args", None) or ()
        return [*reads, *(index for index in args[:1] if index in written)]

    def _find_writer(
        self, regions: Sequence[Region], move: int, reader: int
    ) -> int | None:
        """Return the first instruction that overwrites the regions before they are read, or None.

        In a loop, instructions after the reader count too: the next iteration reads again.
        """
        loop_ends = []
        for begin, end in self._loops:
            if move < begin <= reader <= end:
                loop_ends.append(end)
        last = max(loop_ends, default=-1)
        for number in range(move + 1, max(reader, last + 1)):
            # In a loop, the other branch may run before the reader runs again.
            if not loop_ends and self._is_other_branch(number, reader):
                continue
            if self._overwrites(number, regions):
                return number
        if reader < len(self._calls) and self._overwrites(reader, regions):
            if self._goes_by_elements(reader, regions):
                return None
            return reader
        return None

    def _is_other_branch(self, number: int, reader: int) -> bool:
        """Return whether an instruction only runs if the reader doesn't."""
        return any(
            number in first and reader in second for first, second in self._branches
        )

    def _overwrites(self, number: int, regions: Sequence[Region]) -> bool:
        if (
            isinstance(self._calls[number], schema.MoveCall)
            or self._kernel(number) == _VIEW
        ):
            return False
        for written in self._written_regions(number):
            if any(_overlap(written, region) for region in regions):
                return True
        return False

    def _goes_by_elements(self, number: int, regions: Sequence[Region]) -> bool:
        """Return whether a kernel works in place and reads each element before overwriting it."""
        namespace, _, name = self._kernel(number).partition("::")
        base, _, overload = name.partition(".")
        packet = None
        if namespace == "aten":
            packet = getattr(torch.ops.aten, base, None)
        operator = getattr(packet, overload, None)
        is_pointwise = torch.Tag.pointwise in getattr(operator, "tags", ())
        if base not in _COPIES and not is_pointwise:
            return False
        return all(region in regions for region in self._written_regions(number))

    def _views_unfilled(self, value: int, reader: int) -> bool:
        """Return whether an instruction reads the memory planned for this value by another value.

        Only values that nothing fills count.
        """
        region = self._planned.get(value)
        if region is None:
            return False
        for alias in self._reads[reader]:
            if alias == value or alias in self._filled:
                continue
            if self._planned.get(alias) == region:
                return True
        return False

    def _kernel(self, number: int) -> str:
        call = self._calls[number]
        if not isinstance(call, schema.KernelCall):
            return ""
        operator = self._plan.operators[call.op_index]
        return ".".join(filter(None, (operator.name, operator.overload)))

    @cached_property
    def _loops(self) -> list[tuple[int, int]]:
        """The indices of the first and last instruction of each loop."""
        loops = []
        for number, call in enumerate(self._calls):
            if (
                isinstance(call, schema.JumpFalseCall)
                and call.destination_instruction <= number
            ):
                loops.append((call.destination_instruction, number))
        return loops

    @cached_property
    def _branches(self) -> list[tuple[range, range]]:
        """The indices of the instructions of both branches of each `torch.cond`.

        The first branch begins after a jump to the second, and ends with a jump over it.
        """
        branches = []
        for number, call in enumerate(self._calls):
            if (
                not isinstance(call, schema.JumpFalseCall)
                or call.destination_instruction <= number
            ):
                continue
            second = call.destination_instruction
            over = self._calls[second - 1]
            if second - 1 > number and isinstance(over, schema.JumpFalseCall):
                ends = over.destination_instruction
                branches.append((range(number + 1, second - 1), range(second, ends)))
        return branches

    @cached_property
    def _planned(self) -> dict[int, Region]:
        regions = {}
        for index, value in enumerate(self._plan.values):
            region = _find_region(value.val)
            if region is not None:
                regions[index] = region
        return regions

    @cached_property
    def _filled(self) -> frozenset[int]:
        """The values that an instruction writes, and the plan's inputs."""
        return frozenset(self._plan.inputs).union(*self._writes)


def _find_region(value: object) -> Region | None:
    if not isinstance(value, schema.Tensor) or value.allocation_info is None:
        return None
    allocation = value.allocation_info
    name = SCALAR_TYPES.split()[int(value.scalar_type)]
    # torch lacks some of ExecuTorch's dtypes; their elements count as one byte.
    item = 1
    if hasattr(torch, name):
        item = getattr(torch, name).itemsize
    size = item * math.prod(value.sizes)
    begin = allocation.memory_offset
    return allocation.memory_id, begin, begin + size


def _overlap(first: Region, second: Region) -> bool:
    first_arena, first_begin, first_end = first
    second_arena, second_begin, second_end = second
    if first_arena != second_arena:
        return False
    return first_begin < second_end and second_begin < first_end


def describe_loss(loss: LostResult) -> str:
    """Describe how a result is lost and how to fix it, in words that follow its `torch.cond`."""
    if loss.lost_at is None:
        return (
            "its result is read through a view of memory that nothing fills; `.clone()` it, or "
            "set `emit: {remove_view_copy: false}`"
        )
    return (
        "its result is overwritten by the control flow that runs before it is read, since "
        "ExecuTorch plans the bodies of both in the same memory; `.clone()` it "
        "(`torch.cond(...).clone()`), or, in a method with partitioners, which may run the copy "
        "too late, replace one of the two with torch.where"
    )
