"""The text in which the add/sub backend compiles a partition: written, read, and renumbered.

A payload is ASCII. Its first line is `add_sub 1`, the format and its version; its last tells how
many lines there are and a checksum of all before it. Between them stands one instruction a line,
each of which gives one value, `v0`, `v1` and so on in their order, or returns one:

    input v0 float32[2,?]
    constant v1 float32[2,1] @3 = 0.5 -2.0
    constant v2 float32[64,1] @4 data add_sub/1f5a...
    sub v3 float32[2,?] @3 = v0 v1 alpha=2
    cast v4 float64[2,?] @5 = v3
    output v4

`?` is a size that is known only when it runs. `@3` is the debug handle of the node that a line was
made of, and of a constant that of its first reader; `@-` stands for none. Few constants stand in
the text, each number such that it is read back as the same bits; the others are named data.

Nothing is evaluated, and a line that says anything else is an error that names it. No torch here:
the compiler and the runtime share this and nothing more.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pipeline.backends.delegate_runtime import DelegateError

FORMAT = "add_sub 1"
# By torch's names, those that both ExecuTorch's portable kernels and eager mode add.
DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"
)  # fmt: skip

Number: TypeAlias = int | float
Size: TypeAlias = int | None  # None is known only at run time
Operation = Literal["add", "sub", "cast"]


class PayloadError(DelegateError):
    """A payload that this format does not allow. `line` counts from 1."""

    def __init__(self, line: int, what: str, debug_handle: int | None = None) -> None:
        super().__init__(f"line {line} of the payload: {what}", debug_handle)
        self.line = line
        self._said = what

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.line, self._said, self.debug_handle)


@dataclass(frozen=True)
class TensorType:
    """What is known of a value before it is there."""

    dtype: str
    sizes: tuple[Size, ...]

    def __str__(self) -> str:
        sizes = ",".join("?" if size is None else str(size) for size in self.sizes)
        return f"{self.dtype}[{sizes}]"


@dataclass(frozen=True)
class Input:
    """The next input of the delegate."""

    value: int
    type: TensorType

    def __str__(self) -> str:
        return f"input v{self.value} {self.type}"


@dataclass(frozen=True)
class Constant:
    """`numbers` in row-major order, or `data`, a key of the named data that holds them so."""

    value: int
    type: TensorType
    handle: int | None
    numbers: tuple[Number, ...] | None = None
    data: str = ""

    def __str__(self) -> str:
        start = f"constant v{self.value} {self.type} {_handle(self.handle)}"
        if self.numbers is None:
            return f"{start} data {self.data}"
        return " ".join([start, "=", *map(repr, self.numbers)])


@dataclass(frozen=True)
class Compute:
    """`add` and `sub` of two values, the second one times `alpha`; or a `cast` of one value, which
    copies it too where it has the dtype already."""

    value: int
    type: TensorType
    handle: int | None
    operation: Operation
    operands: tuple[int, ...]
    alpha: Number = 1

    def __str__(self) -> str:
        operands = " ".join(f"v{each}" for each in self.operands)
        alpha = "" if self.operation == "cast" else f" alpha={self.alpha!r}"
        place = f"v{self.value} {self.type} {_handle(self.handle)}"
        return f"{self.operation} {place} = {operands}{alpha}"


@dataclass(frozen=True)
class Output:
    """The next output of the delegate."""

    value: int

    def __str__(self) -> str:
        return f"output v{self.value}"


Instruction: TypeAlias = Input | Constant | Compute | Output


def write(instructions: Iterable[Instruction]) -> bytes:
    """The payload of a partition."""
    return _sealed([FORMAT, *map(str, instructions)])


def read(payload: bytes) -> dict[int, Instruction]:
    """The instructions of a payload by their lines, in order. Raises PayloadError."""
    lines = _lines(payload)
    found: dict[int, Instruction] = {}
    types: list[TensorType] = []
    for number, line in lines:
        instruction = _parse(number, line)
        _check(number, instruction, types)
        if not isinstance(instruction, Output):
            types.append(instruction.type)
        found[number] = instruction
    _check_seal(payload, len(found) + 2)
    return found


def with_handles(payload: bytes, handles: Mapping[int, int]) -> bytes | None:
    """The payload with other debug handles, byte for byte as if it had been compiled with them;
    None where `handles` lacks one, or where it is no payload of ours."""
    try:
        _check_seal(payload, 0)
        lines = payload.decode("ascii").splitlines()[:-1]
        return _sealed([_HANDLE.sub(lambda old: f" @{handles[int(old[1])]} ", x) for x in lines])
    except (KeyError, PayloadError):
        return None


def _handle(handle: int | None) -> str:
    return "@-" if handle is None else f"@{handle}"


def _sealed(lines: list[str]) -> bytes:
    text = "".join(f"{line}\n" for line in lines).encode("ascii")
    return text + f"end {len(lines) + 1} {zlib.crc32(text):08x}\n".encode("ascii")


_HANDLE = re.compile(r" @(\d+) ")
_END = re.compile(r"end (\d+) ([0-9a-f]{8})")
_TYPE = r"(?P<type>\w+\[[\d,?]*\])"
_VALUE = r"v(?P<value>\d+)"
_AT = r"@(?P<handle>\d+|-)"
_LINES = {
    "input": re.compile(rf"input {_VALUE} {_TYPE}"),
    "constant": re.compile(
        rf"constant {_VALUE} {_TYPE} {_AT} (=(?P<numbers>( \S+)*)|data (?P<data>\S+))"
    ),
    "cast": re.compile(rf"cast {_VALUE} {_TYPE} {_AT} = (?P<operands>v\d+)"),
    "output": re.compile(rf"output {_VALUE}"),
}
_LINES |= {
    name: re.compile(
        rf"{name} {_VALUE} {_TYPE} {_AT} = (?P<operands>v\d+ v\d+) alpha=(?P<alpha>\S+)"
    )
    for name in ("add", "sub")
}


def _lines(payload: bytes) -> Iterator[tuple[int, str]]:
    """The lines between the first and the last, numbered."""
    try:
        text = payload.decode("ascii")
    except UnicodeDecodeError as error:
        line = payload.count(b"\n", 0, error.start) + 1
        raise PayloadError(line, f"holds the byte 0x{payload[error.start]:02x}") from None
    lines = text.split("\n")
    if lines[0] != FORMAT:
        raise PayloadError(1, f"must be '{FORMAT}', is {_shown(lines[0])}")
    if lines[-1] or not _END.fullmatch(lines[-2]):
        raise PayloadError(len(lines) - (not lines[-1]), "is not the last one; the rest is missing")
    yield from enumerate(lines[1:-2], 2)


def _check_seal(payload: bytes, count: int) -> None:
    """Raises PayloadError where the last line is not that of the others; `count` is how many lines
    there are, or 0 where that is not asked."""
    text, _, last = payload[:-1].rpartition(b"\n")
    end = _END.fullmatch(last.decode("ascii", "replace"))
    line = payload.count(b"\n")
    if end is None:
        raise PayloadError(line, "is not the last one; the rest is missing")
    if count and int(end[1]) != count:
        raise PayloadError(line, f"says that there are {end[1]} lines; there are {count}")
    if int(end[2], 16) != zlib.crc32(text + b"\n"):
        raise PayloadError(line, "has the checksum of another text; one of the lines was changed")


def _parse(number: int, line: str) -> Instruction:
    name = line.partition(" ")[0]
    if name not in _LINES:
        raise PayloadError(number, f"no instruction {_shown(name)}; known: {', '.join(_LINES)}")
    match = _LINES[name].fullmatch(line)
    if match is None:
        raise PayloadError(number, f"is no '{name}' of this format: {_shown(line)}")
    value, fields = int(match["value"]), match.groupdict()
    if name == "output":
        return Output(value)
    kind = _type(number, match["type"])
    if name == "input":
        return Input(value, kind)
    handle = None if fields["handle"] == "-" else int(fields["handle"])
    if name == "constant":
        numbers = fields["numbers"]
        if numbers is None:
            return Constant(value, kind, handle, None, fields["data"])
        return Constant(value, kind, handle, tuple(_number(number, x) for x in numbers.split()))
    operands = tuple(int(each[1:]) for each in fields["operands"].split())
    alpha = _number(number, fields["alpha"]) if "alpha" in fields else 1
    return Compute(value, kind, handle, name, operands, alpha)  # type: ignore[arg-type]


def _type(number: int, text: str) -> TensorType:
    dtype, _, sizes = text[:-1].partition("[")
    if dtype not in DTYPES:
        raise PayloadError(number, f"no dtype {_shown(dtype)}; known: {', '.join(DTYPES)}")
    parts = sizes.split(",") if sizes else []
    if not all(part == "?" or part.isdigit() for part in parts):
        raise PayloadError(number, f"no sizes are [{sizes}]")
    return TensorType(dtype, tuple(None if part == "?" else int(part) for part in parts))


_INTEGER = re.compile(r"-?\d+")


def _number(line: int, text: str) -> Number:
    """As `repr` writes it, whole numbers and floating point apart."""
    try:
        value = int(text) if _INTEGER.fullmatch(text) else float(text)
    except ValueError:
        raise PayloadError(line, f"no number is {_shown(text)}") from None
    if repr(value) != text:
        raise PayloadError(line, f"the number {value!r} must not be written {_shown(text)}")
    return value


def _check(line: int, instruction: Instruction, types: list[TensorType]) -> None:
    """Values are defined once, in order, and before they are read; numbers fit their dtypes."""
    used: tuple[int, ...] = ()
    if isinstance(instruction, Output):
        used = (instruction.value,)
    elif instruction.value != len(types):
        raise PayloadError(line, f"must define v{len(types)}, defines v{instruction.value}")
    if isinstance(instruction, Compute):
        used = instruction.operands
    unknown = [f"v{each}" for each in used if each >= len(types)]
    if unknown:
        raise PayloadError(line, f"reads {', '.join(unknown)}, which no line before it defines")
    if isinstance(instruction, Constant):
        _check_constant(line, instruction)
    if (
        isinstance(instruction, Compute)
        and isinstance(instruction.alpha, float)
        and "float" not in instruction.type.dtype
    ):
        raise PayloadError(line, f"alpha of {instruction.type.dtype} must be a whole number")


def _check_constant(line: int, constant: Constant) -> None:
    if None in constant.type.sizes:
        raise PayloadError(line, "the size of a constant is known")
    if constant.numbers is None:
        return
    count = 1
    for size in constant.type.sizes:
        count *= size or 0
    if len(constant.numbers) != count:
        raise PayloadError(line, f"must hold {count} numbers, holds {len(constant.numbers)}")
    floating = "float" in constant.type.dtype
    if not all(isinstance(each, float) == floating for each in constant.numbers):
        raise PayloadError(line, f"holds numbers that are not {constant.type.dtype}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
