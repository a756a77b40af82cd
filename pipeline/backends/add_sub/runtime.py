"""The runtime of the add/sub backend in Python: reads the text once, then computes whole tensors.

Every instruction is the operator of torch of its name, so that broadcasting, alpha and rounding are
those of eager mode.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.backends.add_sub.text import Instruction, read, type_of
from pipeline.backends.delegate_runtime import DelegateError, DelegateRuntime, Timing
from pipeline.store.errors import first_line


@dataclass
class Loaded:
    """A payload that was read. `timings` are those of the last call."""

    instructions: list[Instruction]
    constants: dict[str, Tensor]
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
        lines = read(processed_bytes)
        constants = [line for line in lines if line.operation == "constant"]
        return Loaded(lines, {line.value: _constant(line, named_data) for line in constants})

    def execute(self, handle: Loaded, inputs: Sequence[Any]) -> list[Tensor]:
        """Raises DelegateError: an input is not what the payload declares, or an instruction
        fails; then with its debug handle."""
        declared = [line for line in handle.instructions if line.operation == "input"]
        if len(inputs) != len(declared):
            raise DelegateError(f"takes {len(declared)} inputs, {len(inputs)} given")
        given = {line.value: _check(line, x) for line, x in zip(declared, inputs, strict=True)}
        values, outputs, handle.timings = handle.constants | given, [], []
        for line in handle.instructions:
            if line.operation == "output":
                outputs += [values[name] for name in line.operands]
            elif line.operation not in ("input", "constant"):
                started = time.perf_counter()
                values[line.value] = _compute(line, values)
                seconds = time.perf_counter() - started
                handle.timings.append(Timing(line.operation, seconds, line.handle))
        return [value.clone(memory_format=torch.contiguous_format) for value in outputs]

    def timings(self, handle: Loaded) -> Iterable[Timing]:
        """Return those of `add`, `sub` and `cast` in the last call, up to the one that failed."""
        return tuple(handle.timings)


def _constant(line: Instruction, named_data: Mapping[str, bytes]) -> Tensor:
    data = np.frombuffer(named_data.get(line.data, b""), np.uint8).copy()
    try:
        dtype, sizes = line.type.removesuffix("]").split("[")
        plain = torch.from_numpy(data).view(getattr(torch, dtype))
        return plain.reshape([int(size) for size in sizes.split(",") if size])
    except (RuntimeError, ValueError) as error:
        what = f"the {len(data)} bytes of {line.data} in the package"
        raise DelegateError(f"{line.type} can't be made of {what}") from error


def _compute(line: Instruction, values: Mapping[str, Tensor]) -> Tensor:
    operands = [values[name] for name in line.operands]
    try:
        if line.operation == "cast":
            result = operands[0].to(getattr(torch, line.type.partition("[")[0]))
        else:
            result = getattr(torch, line.operation)(*operands, alpha=line.alpha)
    except Exception as error:  # whatever an operator raises
        raise DelegateError(f"{line.operation}: {first_line(error)}", line.handle) from error
    return _check(line, result)


def _check(line: Instruction, value: Any) -> Tensor:
    """Return a value that has the declared dtype and sizes, of which `?` is any."""
    found = type_of(value) if isinstance(value, Tensor) else type(value).__name__
    if not re.fullmatch(re.escape(line.type).replace(r"\?", r"\d+"), found):
        what = f"{line.operation}: {line.value} must be {line.type}, is {found}"
        raise DelegateError(what, line.handle)
    return value
