"""Reads flatbuffers: tables, and the spans of their vectors, with every offset checked.

ExecuTorch's own reader turns all bytes into Python objects and loses their offsets. The library
`flatbuffers` checks nothing, so a damaged offset makes it read the wrong bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple


class CorruptError(ValueError):
    """A file that is damaged or of another kind; the message says how."""


class Span(NamedTuple):
    """A range of bytes in a file."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


_UNPACK = {letter: struct.Struct(f"<{letter}").unpack_from for letter in "bBhHiIqQ"}


def number(data: memoryview, at: int, letter: str) -> int:
    """Return the little-endian number at an offset; `letter` is its type code for `struct`."""
    if at >= 0:  # or it would count from the end
        try:
            value: int = _UNPACK[letter](data, at)[0]
            return value
        except struct.error:
            pass
    raise CorruptError("it refers to data beyond its end")


def root(data: memoryview) -> Table:
    # Reading a sound file visits each vector only a few times. In a damaged file, vectors can refer
    # to each other's tables, or many tables to one long vector, and reading would never end.
    return Table(data, number(data, 0, "I"), [4 * len(data)])


class Table(NamedTuple):
    """A table of a flatbuffer. Fields are numbered as in the schema; a union takes two numbers.

    `budget` holds the number of vector bytes that may still be visited; all tables of the file
    share it. Every method raises CorruptError if the file contradicts itself.
    """

    data: memoryview
    at: int
    budget: list[int]

    def place(self, field: int) -> int:
        """Return the offset of a field, or 0 if the table leaves it out."""
        # The table of field offsets (vtable) may come before or after: its distance is signed.
        places = self.at - number(self.data, self.at, "i")
        slot = 4 + 2 * field
        if slot + 2 > number(self.data, places, "H"):
            return 0
        offset = number(self.data, places + slot, "H")
        return self.at + offset if offset else 0

    def number(self, field: int, letter: str, default: int = 0) -> int:
        place = self.place(field)
        if place:
            return number(self.data, place, letter)
        return default

    def table(self, field: int) -> Table | None:
        place = self.place(field)
        if not place:
            return None
        return Table(self.data, place + number(self.data, place, "I"), self.budget)

    def span(self, field: int, width: int = 1) -> Span | None:
        """Return the span of a vector's elements, `width` bytes each, or None if it is left out."""
        place = self.place(field)
        if not place:
            return None
        start = place + number(self.data, place, "I")
        span = Span(start + 4, width * number(self.data, start, "I"))
        if span.end > len(self.data):
            raise CorruptError("it refers to data beyond its end")
        self.budget[0] -= span.size
        if self.budget[0] < 0:
            raise CorruptError("it announces more data than it contains")
        return span

    def numbers(self, field: int, letter: str) -> tuple[int, ...]:
        size = struct.calcsize(f"<{letter}")
        span = self.span(field, size)
        if span is None:
            return ()
        return struct.unpack_from(
            f"<{span.size // size}{letter}",
            self.data,
            span.offset,
        )

    def tables(self, field: int) -> Iterator[Table]:
        span = self.span(field, 4)
        if span is None:
            return
        for place in range(span.offset, span.end, 4):
            yield Table(self.data, place + number(self.data, place, "I"), self.budget)

    def text(self, field: int) -> str:
        span = self.span(field)
        if span is None:
            return ""
        try:
            return bytes(self.data[span.offset : span.end]).decode()
        except UnicodeDecodeError as error:
            raise CorruptError("a name in it is not text") from error
