"""Reads zip files as torch writes them, with uncompressed members.

The directory is checked: each member occupies as many bytes of the file as it claims, and no two
members overlap, so nothing that is read is larger than the file. This module doesn't import torch.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterator
from functools import cache
from typing import IO, TYPE_CHECKING
from zlib import crc32

from pipeline.store import digest
from pipeline.store.digest import Digest

if TYPE_CHECKING:
    from mmap import mmap

_LONGEST_NAME = 1000
_MOST_MEMBERS = 1_000_000
_LOCAL_HEADER, _LENGTHS_AT = 30, 26  # bytes
# Bytes; torch aligns its memory, and the members that it writes, to this.
_ALIGNMENT = 64


class StoredZip:
    """The members of a zip file, by their names below its single root folder.

    Raises ValueError if torch could not have written the file.
    """

    def __init__(self, members: zipfile.ZipFile) -> None:
        self._zip = members
        self._mapped: mmap | None = None
        self.hash = cache(self._hash)  # once for all programs that share a member
        infos = members.infolist()
        _check_names(infos)
        assert members.fp is not None  # it is open
        _check_places(infos, members.fp.seek(0, 2))
        self._infos = {info.filename.partition("/")[2]: info for info in infos}
        order = b"little"
        if "byteorder" in self._infos:
            order = self.read("byteorder", 16)
        if order != b"little":
            raise ValueError(f"has the byte order {order!r}, must be little")

    def names(self) -> list[str]:
        """Return the names of the members, in the order of the directory."""
        return list(self._infos)

    def has(self, name: str) -> bool:
        """Return whether there is a member of this name."""
        return name in self._infos

    def size(self, name: str) -> int:
        """Return the size of a member in bytes."""
        if name not in self._infos:
            raise ValueError(f"has no member '{name}'")
        return self._infos[name].file_size

    def open(self, name: str) -> IO[bytes]:
        """Open a member. Reading to its end raises zipfile.BadZipFile if it is damaged."""
        return self._zip.open(self._infos[name])

    def read(self, name: str, most: int) -> bytes:
        """Return the bytes of a member. Raises ValueError if it has more than `most`."""
        size = self.size(name)
        if size > most:
            raise ValueError(
                f"has a member '{name}' of {size} bytes, at most {most} are read"
            )
        return self._zip.read(self._infos[name])

    def read_into(self, name: str, view: memoryview) -> None:
        """Read a member into memory of exactly its size."""
        offset = 0
        with self.open(name) as file:
            while piece := file.read(digest.PIECE):
                end = offset + len(piece)
                view[offset:end] = piece
                offset = end

    @property
    def file(self) -> IO[bytes]:
        """The open zip file."""
        assert self._zip.fp is not None  # it is open
        return self._zip.fp

    def place(self, name: str) -> int | None:
        """Return the offset of a member's bytes in the file, or None if the file is too short."""
        info = self._infos[name]
        # Only the local header contains the length of the padding.
        self.file.seek(info.header_offset + _LENGTHS_AT)
        name_length, padding_length = struct.unpack("<HH", self.file.read(4))
        begin = info.header_offset + _LOCAL_HEADER + name_length + padding_length
        file_size = self.file.seek(0, os.SEEK_END)
        if begin + info.file_size <= file_size:
            return begin
        return None

    def map(self, name: str) -> tuple[mmap, int] | None:
        """Map the file into private memory, and return the map and the offset of a member's bytes.

        Return None if these bytes aren't aligned like torch's memory. The checksum isn't verified,
        and a change of the file changes the mapped bytes.
        """
        begin = self.place(name)
        if begin is None or begin % _ALIGNMENT:
            return None
        if self._mapped is None:
            from pipeline.program.mapped_files import map_file  # and with it ctypes

            self._mapped = map_file(self.file)
        return self._mapped, begin

    def _hash(self, name: str, checked: bool = True) -> Digest:
        """Return the digest of a member.

        Args:
            checked: whether to verify the member's checksum; a caller that knows the digest doesn't
                need this.
        """
        begin = self.place(name)
        if begin is None:  # truncated; zipfile says so
            return digest.hash_stream(self.open(name))
        # Not read from `open`, which takes longer than the bytes of a small member.
        pieces = pieces_at(self.file.fileno(), begin, self.size(name))
        if checked:
            pieces = _verified(pieces, self._infos[name])
        return digest.hash_pieces(pieces)


def read_at(file: int, begin: int, memory: memoryview) -> None:
    """Fill memory with the bytes of an open file, starting at the offset `begin`.

    The file isn't mapped: if a mapped file were truncated meanwhile, the process would be killed.

    Raises:
        ValueError: the file was truncated.
        OSError: the file can't be read.
    """
    while memory:
        size = os.preadv(file, [memory], begin)
        if not size:
            raise ValueError("the archive is truncated")
        memory = memory[size:]
        begin = begin + size


def pieces_at(file: int, begin: int, size: int) -> Iterator[memoryview]:
    """Yield `size` bytes of an open file in pieces, each valid until the next one.

    Raises the same errors as `read_at`.
    """
    memory = memoryview(bytearray(min(digest.PIECE, size)))
    for place in range(0, size, digest.PIECE):
        piece = memory[: size - place]
        read_at(file, begin + place, piece)
        yield piece


def _verified(
    pieces: Iterator[memoryview], info: zipfile.ZipInfo
) -> Iterator[memoryview]:
    """Yield pieces of a member. Raises BadZipFile after the last if the checksum is wrong."""
    checksum = 0
    for piece in pieces:
        checksum = crc32(piece, checksum)
        yield piece
    if checksum != info.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 for file '{info.filename}'")


def _check_names(infos: list[zipfile.ZipInfo]) -> None:
    if len(infos) > _MOST_MEMBERS:
        raise ValueError(f"has {len(infos)} members, at most {_MOST_MEMBERS} are read")
    names = [info.orig_filename for info in infos]
    for name in names:
        if not name.isprintable() or len(name) > _LONGEST_NAME or "\\" in name:
            raise ValueError(f"has a member named {name[:60]!a}, which is not read")
    roots = {name.split("/", 1)[0] for name in names}
    escapes = any(".." in name.split("/") or name.startswith("/") for name in names)
    if len(roots) > 1 or escapes:
        raise ValueError("member names must be under one folder, without '..'")
    # torch's reader ignores case, so if two names differ only in case, it may find another member
    # than Python does.
    if len({name.lower() for name in names}) < len(names):
        raise ValueError("two members have the same name, ignoring case")


def _check_places(infos: list[zipfile.ZipInfo], size: int) -> None:
    """Raise ValueError unless each member occupies separate bytes, as many as it claims."""
    end = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise ValueError(
                f"'{info.filename}' is compressed or encrypted, but torch stores members "
                "unchanged; write the file with torch"
            )
        if info.file_size != info.compress_size:
            raise ValueError(f"'{info.filename}' has two sizes")
        if info.header_offset < end:
            raise ValueError(f"'{info.filename}' overlaps another member")
        # A lower bound, without the padding, whose length is only in the local header.
        end = info.header_offset + _LOCAL_HEADER + len(info.filename) + info.file_size
    if end > size:
        raise ValueError("has members beyond the end of the file; is it truncated?")
