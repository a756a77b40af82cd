"""Bytecode that is not of its source is not run.

Python takes a `.pyc` for any source of the same size and the same second. So a file that is patched
in place, or put back, with its time kept would run as it was, under the key of what it is, since
keys hold contents. The kernel's own times (ctime) tell: they can't be set.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.machinery import BYTECODE_SUFFIXES, SourceFileLoader
from typing import Any

_TOGETHER_NS = 60 * 10**9
_SECOND_NS = 10**9
_read: Any = SourceFileLoader.get_data
_copied_well: tuple[str, ...] = ()


def check_bytecode(copied_well: Sequence[str] = (os.sep,)) -> None:
    """Import with bytecode that is younger than its source from now on, in this process.

    Any other is written anew, as Python does for a source of another size. An environment that was
    copied, or unpacked from an image, gives both a time of their own.

    Args:
        copied_well: folders whose sources are known to be as they were installed. There bytecode
            that was copied within a minute of its source is believed.
    """
    global _copied_well
    _copied_well = tuple(folder.rstrip(os.sep) + os.sep for folder in copied_well)
    SourceFileLoader.get_data = _read_checked  # type: ignore[assignment,method-assign]


def _read_checked(loader: SourceFileLoader, path: str) -> bytes:
    if path.endswith(BYTECODE_SUFFIXES[0]) and is_outdated(loader.path, path):
        raise OSError(f"{path} is older than its source")
    data: bytes = _read(loader, path)
    return data


def is_outdated(source: str, bytecode: str) -> bool:
    """Tell whether a source may have changed since its bytecode was made. Raises OSError."""
    changed, made = os.stat(source).st_ctime_ns, os.stat(bytecode)
    if made.st_ctime_ns > changed:
        return False
    is_copy = made.st_mtime_ns + _SECOND_NS < made.st_ctime_ns
    came_together = changed - made.st_ctime_ns < _TOGETHER_NS
    return not (is_copy and came_together and source.startswith(_copied_well))
