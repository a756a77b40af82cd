"""The runtime of the add/sub backend in Python: reads the text once, then computes whole tensors.

It knows nothing of how the text is made. Every instruction is the operator of torch of its name,
so that broadcasting, alpha and rounding are those of eager mode.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.backends.add_sub.text import DTYPES, FORMAT, seal, type_of
from pipeline.backends.delegate_runtime import DelegateError, DelegateRuntime, Timing
from pipeline.store.errors import first_line

_RESULT = rf"(?P<value>v\d+) (?P<type>(?:{'|'.join(DTYPES)})\[[\d,?]*\])"
_COMPUTED = rf"{_RESULT} @(?P<place>\d+|-) = (?P<operands>v\d+"
_LINES = (
    rf"(?P<operation>input) {_RESULT}",
    rf"(?P<operation>constant) {_RESULT} data (?P<data>\S+)",
    rf"(?P<operation>add|sub) {_COMPUTED} v\d+) alpha=(?P<alpha>\S+)",
    rf"(?P<operation>cast) {_COMPUTED})",
    r"(?P<operation>output) (?P<operands>v\d+)",
)


@dataclass(frozen=True)
class Instruction:
    """A line of the text, part by part."""

    operation: str
    value: str = ""
    type: str = ""
    place: str = "-"
    operands: str = ""
    alpha: str = "1"
    data: str = ""

    @property
    def handle(self) -> int | None:
        return None if self.place == "-" else int(self.place)


@dataclass
class Loaded:
    """A payload that was read. `timings` are those of the last call."""

    instructions: list[Instruction]
    constants: dict[str, Tensor]
    timings: list[Timing] = field(default_factory=list)

    def of(self, *operations: str) -> list[Instruction]:
        return [each for each in self.instructions if each.operation in operations]


class AddSubRuntime(DelegateRuntime):
    """Runs what `compiler.preprocess` made."""

    def init(
        self,
        processed_bytes: bytes,
        compile_specs: Sequence[tuple[str, bytes]],
        named_data: Mapping[str, bytes],
    ) -> Loaded:
        """Raises DelegateError: the payload is damaged, or its constants are not there."""
        instructions = _read(processed_bytes)
        constants = [each for each in instructions if each.operation == "constant"]
        return Loaded(instructions, {each.value: _constant(each, named_data) for each in constants})

    def execute(self, handle: Loaded, inputs: Sequence[Any]) -> list[Tensor]:
        """Raises DelegateError: an input is not what the payload declares, or an instruction
        fails; then with its debug handle."""
        declared = handle.of("input")
        if len(inputs) != len(declared):
            raise DelegateError(f"takes {len(declared)} inputs, {len(inputs)} given")
        values = dict(handle.constants)
        values |= {i.value: _checked(i, x) for i, x in zip(declared, inputs, strict=True)}
        handle.timings = []
        for each in handle.of("add", "sub", "cast"):
            started = time.perf_counter()
            values[each.value] = _compute(each, values)
            seconds = time.perf_counter() - started
            handle.timings.append(Timing(each.operation, seconds, each.handle))
        outputs = [values[each.operands] for each in handle.of("output")]
        return [value.clone(memory_format=torch.contiguous_format) for value in outputs]

    def timings(self, handle: Loaded) -> Iterable[Timing]:
        """Return those of `add`, `sub` and `cast` in the last call, up to the one that failed."""
        return tuple(handle.timings)


def _read(payload: bytes) -> list[Instruction]:
    """Return the instructions of a payload; nothing of it is evaluated. Raises DelegateError."""
    first, *lines = payload.decode("ascii", "backslashreplace").split("\n")
    if first != FORMAT:
        raise DelegateError(f"line 1 of the payload: must be {FORMAT!r}, is {first[:40]!r}")
    if payload != seal(lines[:-2]):
        raise DelegateError("the payload was cut or changed: its checksum is that of another one")
    found = []
    defined: set[str] = set()
    for number, line in enumerate(lines[:-2], 2):
        match = next(filter(None, (re.fullmatch(each, line) for each in _LINES)), None)
        if match is None:
            raise DelegateError(f"line {number} of the payload is no instruction: {line[:80]!r}")
        found.append(Instruction(**match.groupdict()))
        if unknown := set(found[-1].operands.split()) - defined:
            what = f"reads {min(unknown)}, which no line before it defines: {line[:80]!r}"
            raise DelegateError(f"line {number} of the payload {what}")
        defined.add(found[-1].value)
    return found


def _constant(constant: Instruction, named_data: Mapping[str, bytes]) -> Tensor:
    dtype, sizes = constant.type.removesuffix("]").split("[")
    data = np.frombuffer(named_data.get(constant.data, b""), np.uint8).copy()
    try:
        plain = torch.from_numpy(data).view(getattr(torch, dtype))
        return plain.reshape([int(size) for size in sizes.split(",") if size])
    except (RuntimeError, ValueError) as error:
        what = f"the {len(data)} bytes of {constant.data} in the package"
        raise DelegateError(f"{constant.type} can't be made of {what}") from error


def _compute(instruction: Instruction, values: Mapping[str, Tensor]) -> Tensor:
    operands = [values[each] for each in instruction.operands.split()]
    try:
        if instruction.operation == "cast":
            result = operands[0].to(getattr(torch, instruction.type.partition("[")[0]))
        else:
            operator = getattr(torch, instruction.operation)
            result = operator(*operands, alpha=json.loads(instruction.alpha))
    except (RuntimeError, TypeError, ValueError) as error:
        what = f"{instruction.operation}: {first_line(error)}"
        raise DelegateError(what, instruction.handle) from error
    return _checked(instruction, result)


def _checked(declared: Instruction, value: Any) -> Tensor:
    """Return a value that has the declared dtype and sizes, of which `?` is any."""
    found = type_of(value) if isinstance(value, Tensor) else type(value).__name__
    if not re.fullmatch(re.escape(declared.type).replace(r"\?", r"\d+"), found):
        what = f"{declared.operation}: {declared.value} must be {declared.type}, is {found}"
        raise DelegateError(what, declared.handle)
    return value
