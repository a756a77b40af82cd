"""The text that a partition is compiled to and that the runtime reads. No torch.

Behind a line with its version and a checksum, each line is an instruction, which defines a value:

    add_sub 2 1c291ca3
    {"operation":"input","value":"v0","type":"float32[2,?]"}
    {"operation":"constant","value":"v1","type":"float32[64,1]","data":"add_sub/1f5a..."}
    {"operation":"sub","value":"v2","type":"float32[2,?]","operands":["v0","v1"],"alpha":2,"handle":3}
    {"operation":"cast","value":"v3","type":"float64[2,?]","operands":["v2"],"handle":5}
    {"operation":"output","operands":["v3"]}
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from pipeline.backends.delegate_runtime import DelegateError

# By torch's names, those that both ExecuTorch's portable kernels and eager mode add.
DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"
)  # fmt: skip


class Instruction(BaseModel, extra="forbid", strict=True, ser_json_inf_nan="constants"):
    """A line of the text.

    Attributes:
        type: dtype and sizes of its value; `?` is a size that is known only when it runs.
        handle: the debug handle of the node that it was made of, if that has one.
        data: the key of named data.
    """

    operation: Literal["input", "constant", "add", "sub", "cast", "output"]
    value: str = ""
    type: str = Field(default="", pattern=rf"^({'|'.join(DTYPES)})\[[\d,?]*\]$")
    operands: tuple[str, ...] = ()
    alpha: bool | int | float = 1
    handle: int | None = None
    data: str = ""


def type_of(tensor: Any) -> str:
    """Return the dtype and sizes of a tensor, such as "float32[2,?]"."""
    sizes = ",".join(str(size) if type(size) is int else "?" for size in tensor.shape)
    return f"{str(tensor.dtype).removeprefix('torch.')}[{sizes}]"


def seal(body: bytes) -> bytes:
    """Return the payload that has these lines behind its first."""
    return b"add_sub 2 %08x\n%s" % (zlib.crc32(body), body)


def write(instructions: Iterable[Instruction]) -> bytes:
    """Return the payload of instructions; the first one stands on line 2."""
    lines = [each.model_dump_json(exclude_defaults=True) for each in instructions]
    return seal("\n".join(lines).encode())


def read(payload: bytes) -> list[Instruction]:
    """Return the instructions of a payload. Raises DelegateError."""
    first, _, body = payload.partition(b"\n")
    if payload != seal(body):
        raise DelegateError(f"the payload, which begins {first[:40]!r}, was cut or changed")
    instructions: list[Instruction] = []
    defined: set[str] = set()
    for number, line in enumerate(body.splitlines(), 2):
        try:
            instructions.append(Instruction.model_validate_json(line))
        except ValidationError as error:
            what = f"is no instruction: {line[:80]!r}"
            raise DelegateError(f"line {number} of the payload {what}") from error
        if unknown := set(instructions[-1].operands) - defined:
            what = f"reads {min(unknown)}, which no line before it defines"
            raise DelegateError(f"line {number} of the payload {what}")
        if instructions[-1].operation != "output":
            defined.add(instructions[-1].value)
    return instructions
