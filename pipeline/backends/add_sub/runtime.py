"""The runtime in Python. Every instruction is the operator of torch of its name, so that
broadcasting, alpha and rounding are those of eager mode."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.backends.add_sub.text import Instruction, read, type_of
from pipeline.backends.delegate_runtime import DelegateError, DelegateRuntime, Timing
from pipeline.store.reasons import reason


@dataclass
class Loaded:
    """A payload that was read; constants by the number of their line, timings of the last call."""

    instructions: list[Instruction]
    constants: dict[int, Tensor]
    timings: list[Timing] = field(default_factory=list)


class AddSubRuntime(DelegateRuntime):
    """Runs what `compiler.preprocess` made."""

    def init(
        self,
        processed_bytes: bytes,
        compile_specs: Sequence[tuple[str, bytes]],
        named_data: Mapping[str, bytes],
    ) -> Loaded:
        """Raises DelegateError: the payload is damaged, or its constants are not there."""
        instructions = read(processed_bytes)
        constants = {
            number: _value(number, line, named_data.get(line.data, b""))
            for number, line in enumerate(instructions, 1)
            if line.operation == "constant"
        }
        return Loaded(instructions, constants)

    def execute(self, handle: Loaded, inputs: Sequence[Any]) -> list[Tensor]:
        """Raises DelegateError: an input is not what the payload declares, or an instruction
        fails; then with its debug handle."""
        *lines, output = handle.instructions
        values, given, handle.timings = {**handle.constants}, iter(inputs), []
        for number, line in enumerate(lines, 1):
            if line.operation == "input":
                values[number] = _value(number, line, next(given, None))
            elif line.operation != "constant":
                started = perf_counter()
                values[number] = _value(number, line, *(values[each] for each in line.operands))
                handle.timings.append(Timing(line.operation, perf_counter() - started, line.handle))
        try:
            return [values[number].clone() for number in output.operands]
        except RuntimeError as error:  # of types that torch names and makes no copies of
            what = f"line {len(handle.instructions)}: output: {reason(error)}"
            raise DelegateError(what, output.handle) from error

    def timings(self, handle: Loaded) -> Iterable[Timing]:
        """Return those of `add`, `sub` and `cast` in the last call, up to the one that failed."""
        return tuple(handle.timings)


def _value(number: int, line: Instruction, *operands: Any) -> Tensor:
    """Return the value of an instruction, which must be of the type that its line declares."""
    try:
        value = _compute(line, *operands)
        found = type_of(value) if isinstance(value, Tensor) else type(value).__name__
        if not re.fullmatch(re.escape(line.type).replace(r"\?", r"\d+"), found):
            raise ValueError(f"must be {line.type}, is {found}")
    except Exception as error:  # whatever torch raises, of operands or of a damaged line
        what = f"line {number}: {line.operation}: {reason(error)}"
        raise DelegateError(what, line.handle) from error
    return value


def _compute(line: Instruction, *operands: Any) -> Any:
    dtype, sizes = line.type.removesuffix("]").split("[")
    if line.operation == "input":
        return operands[0]
    if line.operation == "constant":
        data = torch.tensor(np.frombuffer(operands[0], np.uint8)).view(getattr(torch, dtype))
        return data.reshape([int(size) for size in sizes.split(",") if size])
    if line.operation == "cast":
        return operands[0].to(getattr(torch, dtype))
    return getattr(torch, line.operation)(*operands, alpha=line.alpha)
