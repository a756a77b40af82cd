"""The runtime of the add/sub backend in Python: reads the text once, then computes whole tensors.

It knows nothing of how the text is made. Every instruction is the operator of torch of its name,
so that broadcasting, alpha and rounding are those of eager mode.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipeline.backends.add_sub import text
from pipeline.backends.add_sub.text import PayloadError
from pipeline.backends.delegate_runtime import DelegateError, DelegateRuntime, Timing

_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in text.DTYPES}


@dataclass
class Loaded:
    """A payload that was read. `constants` stand at the places of their values."""

    instructions: dict[int, text.Instruction]
    constants: dict[int, Tensor]
    timings: list[Timing] = field(default_factory=list)

    @property
    def inputs(self) -> list[text.Input]:
        return [each for each in self.instructions.values() if isinstance(each, text.Input)]


class AddSubRuntime(DelegateRuntime):
    """Runs what `compiler.preprocess` made."""

    def init(
        self,
        processed_bytes: bytes,
        compile_specs: Sequence[tuple[str, bytes]],
        named_data: Mapping[str, bytes],
    ) -> Loaded:
        """Raises PayloadError."""
        instructions = text.read(processed_bytes)
        constants = {
            each.value: _constant(line, each, named_data)
            for line, each in instructions.items()
            if isinstance(each, text.Constant)
        }
        return Loaded(instructions, constants)

    def execute(self, handle: Loaded, inputs: Sequence[Any]) -> list[Tensor]:
        """Raises DelegateError: an input is not what the payload declares, or an instruction
        fails; then with its debug handle."""
        values = dict(handle.constants)
        values |= _checked(handle.inputs, inputs)
        handle.timings = []
        outputs = []
        for each in handle.instructions.values():
            if isinstance(each, text.Compute):
                started = time.perf_counter()
                values[each.value] = _compute(each, values)
                seconds = time.perf_counter() - started
                handle.timings.append(Timing(each.operation, seconds, each.handle))
            elif isinstance(each, text.Output):
                outputs.append(values[each.value].clone(memory_format=torch.contiguous_format))
        return outputs

    def timings(self, handle: Loaded) -> Iterable[Timing]:
        """Those of `add`, `sub` and `cast` in the last call, up to the one that failed."""
        return tuple(handle.timings)


def _constant(line: int, constant: text.Constant, named_data: Mapping[str, bytes]) -> Tensor:
    dtype, sizes = _DTYPES[constant.type.dtype], [size or 0 for size in constant.type.sizes]
    if constant.numbers is not None:
        try:
            return torch.tensor(constant.numbers, dtype=dtype).reshape(sizes)
        except (RuntimeError, OverflowError) as error:
            what = f"holds numbers that are not {constant.type.dtype}: {error}"
            raise PayloadError(line, what, constant.handle) from error
    data = named_data.get(constant.data)
    if data is None:
        what = f"the package holds no data {constant.data}"
        raise PayloadError(line, what, constant.handle)
    needed = torch.Size(sizes).numel() * dtype.itemsize
    if len(data) != needed:
        what = f"{constant.type} takes {needed} bytes, {constant.data} has {len(data)}"
        raise PayloadError(line, what, constant.handle)
    if not data:
        return torch.empty(sizes, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(sizes)


def _checked(declared: Sequence[text.Input], given: Sequence[Any]) -> dict[int, Tensor]:
    """The inputs by their values. Raises DelegateError."""
    if len(given) != len(declared):
        raise DelegateError(f"takes {len(declared)} inputs, {len(given)} given")
    for number, (instruction, value) in enumerate(zip(declared, given, strict=True)):
        if not isinstance(value, Tensor):
            raise DelegateError(f"input {number} must be a tensor, is {type(value).__name__}")
        if not _is(value, instruction.type):
            what = f"input {number} must be {instruction.type}, is {_type_of(value)}"
            raise DelegateError(what)
    return {each.value: value for each, value in zip(declared, given, strict=True)}


def _compute(instruction: text.Compute, values: Mapping[int, Tensor]) -> Tensor:
    operands = [values[each] for each in instruction.operands]
    try:
        if instruction.operation == "add":
            result = torch.add(*operands, alpha=instruction.alpha)
        elif instruction.operation == "sub":
            result = torch.sub(*operands, alpha=instruction.alpha)
        else:
            result = operands[0].to(_DTYPES[instruction.type.dtype])
    except (RuntimeError, TypeError) as error:
        what = str(error).partition("\n")[0]
        raise DelegateError(f"{instruction.operation}: {what}", instruction.handle) from error
    if not _is(result, instruction.type):
        what = f"{instruction.operation}: gives {_type_of(result)}, must give {instruction.type}"
        raise DelegateError(what, instruction.handle)
    return result


def _is(value: Tensor, kind: text.TensorType) -> bool:
    return (
        value.dtype == _DTYPES[kind.dtype]
        and value.dim() == len(kind.sizes)
        and all(
            want is None or want == got for want, got in zip(kind.sizes, value.shape, strict=True)
        )
    )


def _type_of(value: Tensor) -> str:
    dtype = str(value.dtype).removeprefix("torch.")
    return str(text.TensorType(dtype, tuple(value.shape)))
