"""Detects a damaged file of input sets by its headers.

It doesn't import numpy, because planning works without it.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path

SUFFIXES = (".npz", ".safetensors")
_ARRAY = b"\x93NUMPY"  # the first bytes of each .npz member
_LENGTH = 8  # bytes of a .safetensors header's length field
_LONGEST_HEADER = 100_000_000  # bytes, the limit of safetensors


def describe_damage(path: Path) -> str:
    """Return why a file has no arrays or lacks some of them, or "" if its headers are valid."""
    try:
        return _check_zip(path) if path.suffix == ".npz" else _check_header(path)
    except OSError as error:
        return str(error.strerror or error)
    except (
        EOFError,
        NotImplementedError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        return str(error) or type(error).__name__
    except (zipfile.BadZipFile, zlib.error) as error:
        return str(error)


def _check_zip(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        for member in members:
            with archive.open(member) as file:
                if file.read(len(_ARRAY)) != _ARRAY:
                    return f"'{member.filename}' is not an array"
    return "" if members else "contains no arrays"


def _check_header(path: Path) -> str:
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(_LENGTH), "little")
        if length > min(size - _LENGTH, _LONGEST_HEADER):
            return "its header is truncated"
        header = dict(json.loads(file.read(length)))
    header.pop("__metadata__", None)
    try:
        ends = [tensor["data_offsets"][1] for tensor in header.values()]
        missing = _LENGTH + length + max(ends, default=0) - size
    except (KeyError, IndexError, TypeError):
        return "its header has an unknown form"
    if missing > 0:
        return f"it lacks {missing} bytes"
    return "" if ends else "contains no tensors"
