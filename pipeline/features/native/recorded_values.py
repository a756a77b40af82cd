"""Reads the values that the instructions of a method had on a device, as its runner recorded them.

ExecuTorch's runtime records a kernel's results and all arguments of a delegate's call, if they are
tensors or numbers. A runner keeps 512 MiB of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pipeline.devices.bindings import DTYPES
from pipeline.features.native.etdump import read_events
from pipeline.features.native.profile_rows import DELEGATE, KINDS, METHOD, OPERATOR
from pipeline.store.errors import PipelineError


class ExecutedInstruction:
    """One execution of an instruction.

    Attributes:
        index: the index of the instruction in the method.
        values: the instruction's arguments in order, with its results last: tensors (on memory that
            must not be written to), numbers, and lists of tensors. None stands for a tensor that
            didn't fit into the recording.
    """

    def __init__(self, index: int, values: Sequence[Any]) -> None:
        self.index = index
        self.values = values


def read_executions(dump: bytes, content: bytes) -> list[list[ExecutedInstruction]]:
    """Return the kernels and delegates that each execution of a method called, in order.

    Args:
        dump: an ETDump.
        content: the bytes of the values that the ETDump refers to.

    Raises:
        PipelineError: the ETDump and the bytes don't match.
    """
    memory = bytearray(content)  # torch requires writable memory
    executions = []
    for events in read_events(dump):
        instructions: list[ExecutedInstruction] = []
        values: list[Any] = []
        is_execution = False
        for event in events:
            if event.debug_event is not None:
                values.append(_read_value(event.debug_event.debug_entry, memory))
            elif event.profile_event is not None:
                kind = KINDS.get(event.profile_event.name or "")
                is_execution |= kind == METHOD
                if kind in (OPERATOR, DELEGATE):  # it ends after its values
                    index = event.profile_event.instruction_id
                    instructions.append(ExecutedInstruction(index, values))
                    values = []
        if is_execution:
            executions.append(instructions)
    return executions


def _read_value(entry: Any, memory: bytearray) -> Any:
    if entry.tensor is not None:
        return _read_tensor(entry.tensor, memory)
    if entry.tensor_list is not None:
        return [_read_tensor(tensor, memory) for tensor in entry.tensor_list.tensors]
    for number in (entry.int_value, entry.double_value, entry.bool_value):
        if number is not None:
            return next(iter(vars(number).values()))
    return None


def _read_tensor(tensor: Any, memory: bytearray) -> torch.Tensor | None:
    """Return a tensor on the memory of all values, or None if its bytes weren't recorded."""
    try:
        dtype = DTYPES[int(tensor.scalar_type)]
        sizes, strides = tuple(tensor.sizes), tuple(tensor.strides)
        flat = torch.empty(0, dtype=dtype)
        count = torch.Size(sizes).numel()
        if count and tensor.offset >= len(memory):
            return None
        if count:
            flat = torch.frombuffer(
                memory, dtype=dtype, count=count, offset=tensor.offset
            )
        return flat.as_strided(sizes, strides)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise PipelineError(f"a recorded value can't be read ({reason})") from error
