"""The wire format between this process and a runner (runner/wire.h, runner/values.h)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pipeline.devices.bindings import DTYPES

_NONE, _TENSOR, _INT, _DOUBLE, _BOOL, _TEXT, _LIST = range(7)
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
Order = tuple[int, ...] | None
Read = Callable[[int], bytes]


def put_text(text: str) -> bytes:
    """Return an encoded text, preceded by its length."""
    encoded = text.encode()
    return struct.pack("<I", len(encoded)) + encoded


def put_value(value: Any, order: Order) -> bytes:
    """Return the encoding of an input. Raises ValueError if a runner can't take its type.

    Args:
        order: the order in which the method reads a tensor's dimensions, outermost first.
    """
    if isinstance(value, torch.Tensor):
        return _put_tensor(value, order)
    if value is None:
        return struct.pack("<B", _NONE)
    if isinstance(value, bool):
        return struct.pack("<BB", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<Bq", _INT, value)
    if isinstance(value, float):
        return struct.pack("<Bd", _DOUBLE, value)
    raise ValueError(f"a {type(value).__name__} can't be sent to a runner")


def _put_tensor(value: torch.Tensor, order: Order) -> bytes:
    if value.dtype not in _NUMBERS:
        raise ValueError(f"a tensor of {value.dtype} can't be sent to a runner")
    rank = value.ndim
    if order is None or len(order) != rank:
        order = tuple(range(rank))
    plain = value.detach().permute(order).contiguous().reshape(-1)
    content = plain.view(torch.uint8).numpy().tobytes()
    head = struct.pack("<BBI", _TENSOR, _NUMBERS[value.dtype], rank)
    sizes = struct.pack(f"<{rank}I", *value.shape)
    return b"".join(
        [head, sizes, bytes(order), struct.pack("<Q", len(content)), content]
    )


class AnswerReader:
    """Decodes answers from a function that returns as many bytes as requested."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def number(self, form: str = "I") -> Any:
        """Return a number in a format of `struct`."""
        packed = f"<{form}"
        return struct.unpack(packed, self._read(struct.calcsize(packed)))[0]

    def text(self) -> str:
        return self._read(self.number()).decode(errors="replace")

    def content(self) -> bytes:
        """Return bytes that are preceded by their count."""
        return self._read(self.number("Q"))

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.number())]

    def numbers(self, count: int) -> Sequence[int]:
        """Return `count` unsigned 64-bit numbers."""
        return struct.unpack(f"<{count}Q", self._read(8 * count))

    def value(self) -> Any:
        """Return an output. Raises ValueError if its tag is unknown."""
        kind = self.number("B")
        match kind:
            case 0:
                return None
            case 1:
                return self._tensor()
            case 2:
                return self.number("q")
            case 3:
                return self.number("d")
            case 4:
                return bool(self.number("B"))
            case 5:
                return self.text()
            case 6:
                return self.values()
        raise ValueError(f"an output has the unknown tag {kind}")

    def values(self) -> list[Any]:
        return [self.value() for _ in range(self.number())]

    def _tensor(self) -> torch.Tensor:
        dtype = DTYPES[self.number("B")]
        rank = self.number()
        sizes = struct.unpack(f"<{rank}I", self._read(4 * rank))
        order = list(self._read(rank))
        content = bytearray(self._read(self.number("Q")))
        if not content:
            return torch.empty(sizes, dtype=dtype)
        lying = torch.frombuffer(content, dtype=dtype)
        lying = lying.reshape([sizes[dimension] for dimension in order])
        return lying.permute([order.index(dimension) for dimension in range(rank)])
