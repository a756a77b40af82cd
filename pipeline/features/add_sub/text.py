"""Defines the text format shared by the compiler and the runtime. Doesn't import torch.

Each line is an instruction. Later lines refer to its value by line number:

    {"operation":"input","type":"float32[2,?]"}
    {"operation":"constant","type":"float32[64,1]","data":"add_sub/1f5a..."}
    {"operation":"sub","type":"float32[2,?]","operands":[1,2],"alpha":2,"handle":3}
    {"operation":"output","operands":[3]}
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from pipeline.backends.delegate_runtime import DelegateError


class Instruction(BaseModel, extra="forbid", strict=True, ser_json_inf_nan="constants"):
    """A line of the text.

    `type` is the dtype and sizes of its value, with `?` for a size that is known only at run time;
    `handle` is the debug handle of its node; `data` is the key of its named data.
    """

    operation: Literal["input", "constant", "add", "sub", "cast", "output"]
    type: str = Field(default="", pattern=r"^\w+\[[\d,?]*\]$")
    operands: tuple[int, ...] = ()
    alpha: int | float = 1
    handle: int | None = None
    data: str = ""


def type_of(tensor: Any) -> str:
    """Return the dtype and sizes of a tensor, such as "float32[2,?]"."""
    sizes = ",".join(str(size) if type(size) is int else "?" for size in tensor.shape)
    return f"{str(tensor.dtype).removeprefix('torch.')}[{sizes}]"


def read(payload: bytes) -> list[Instruction]:
    """Return the instructions of a payload. Raises DelegateError, which names the invalid line."""
    instructions: list[Instruction] = []
    lines = payload.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            instruction = Instruction.model_validate_json(line)
            if not all(0 < operand < number for operand in instruction.operands):
                raise ValueError("an operand is used before it is computed")
            is_last = number == len(lines)
            if (instruction.operation == "output") != is_last:
                raise ValueError("exactly one line, the last, must be the output")
        except ValueError as error:
            raise DelegateError(
                f"line {number} is not a valid instruction: {line[:80]!r}"
            ) from error
        instructions.append(instruction)
    return instructions
