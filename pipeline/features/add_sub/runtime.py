"""Runs delegates in Python.

Each instruction calls the torch operator of the same name, so broadcasting, alpha and rounding
match eager mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.backends.delegate_runtime import DelegateError, DelegateRuntime, Timing
from pipeline.features.add_sub.text import Instruction, read, type_of
from pipeline.store.reasons import reason


@dataclass
class Loaded:
    """A loaded payload: constants by line number, and the timings of the last call."""

    instructions: list[Instruction]
    constants: dict[int, Tensor]
    timings: list[Timing] = field(default_factory=list)


class AddSubRuntime(DelegateRuntime):
    """Runs payloads made by `compiler.preprocess`."""

    def init(
        self,
        processed_bytes: bytes,
        compile_specs: Sequence[tuple[str, bytes]],
        named_data: Mapping[str, bytes],
    ) -> Loaded:
        """Load a payload. Raises DelegateError if it is damaged or its constants are missing."""
        instructions = read(processed_bytes)
        constants = {}
        for number, line in enumerate(instructions, 1):
            if line.operation == "constant":
                constants[number] = _value(number, line, named_data.get(line.data, b""))
        return Loaded(instructions, constants)

    def execute(self, handle: Loaded, inputs: Sequence[Any]) -> list[Tensor]:
        """Run a payload.

        Raises DelegateError if an input doesn't match the payload's declaration, or if an
        instruction fails; the latter error carries the instruction's debug handle.
        """
        *lines, output = handle.instructions
        values = {**handle.constants}
        remaining_inputs = iter(inputs)
        handle.timings = []
        for number, line in enumerate(lines, 1):
            if line.operation == "input":
                values[number] = _value(number, line, next(remaining_inputs, None))
            elif line.operation != "constant":
                operands = [values[operand] for operand in line.operands]
                started = perf_counter()
                values[number] = _value(number, line, *operands)
                seconds = perf_counter() - started
                handle.timings.append(Timing(line.operation, seconds, line.handle))
        try:
            return [values[number].clone() for number in output.operands]
        except RuntimeError as error:  # a dtype that torch has, but can't copy
            message = f"line {len(handle.instructions)}: output: {reason(error)}"
            raise DelegateError(message, output.handle) from error

    def timings(self, handle: Loaded) -> Iterable[Timing]:
        """Return the times of `add`, `sub` and `cast` in the last call, up to any failed one."""
        return tuple(handle.timings)


def _value(number: int, line: Instruction, *operands: Any) -> Tensor:
    """Return the value of an instruction, checked against the type that its line declares."""
    try:
        value = _compute(line, *operands)
        value_type = (
            type_of(value) if isinstance(value, Tensor) else type(value).__name__
        )
        pattern = re.escape(line.type).replace(r"\?", r"\d+")
        if not re.fullmatch(pattern, value_type):
            raise ValueError(f"must be {line.type}, is {value_type}")
    except Exception as error:  # whatever torch raises for operands or a damaged line
        message = f"line {number}: {line.operation}: {reason(error)}"
        raise DelegateError(message, line.handle) from error
    return value


def _compute(line: Instruction, *operands: Any) -> Any:
    dtype, sizes = line.type.removesuffix("]").split("[")
    if line.operation == "input":
        return operands[0]
    if line.operation == "constant":
        data = torch.tensor(np.frombuffer(operands[0], np.uint8)).view(
            getattr(torch, dtype)
        )
        return data.reshape([int(size) for size in sizes.split(",") if size])
    if line.operation == "cast":
        return operands[0].to(getattr(torch, dtype))
    return getattr(torch, line.operation)(*operands, alpha=line.alpha)
