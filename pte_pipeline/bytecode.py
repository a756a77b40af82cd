"""Keeps Python from running bytecode that doesn't match its source.

Python accepts a `.pyc` for any source with the same size and the same modification time, in
seconds. A file that is patched or restored in place with its time preserved would therefore run its
old code under the key of its new content, since keys hash contents. The kernel's change times
(ctime) reveal such edits, because no program can set them.
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
    """From now on, load only bytecode that is younger than its source, in this process.

    Any other bytecode is compiled again, as Python does when the size of a source changes. Copying
    an environment, or unpacking it from an image, gives both files new change times.

    Args:
        copied_well: folders whose sources are known to be as installed. Bytecode there is trusted
            if it was copied within a minute of its source.
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
    """Return whether a source may have changed since its bytecode was compiled. Raises OSError."""
    changed, made = os.stat(source).st_ctime_ns, os.stat(bytecode)
    if made.st_ctime_ns > changed:
        return False
    is_copy = made.st_mtime_ns + _SECOND_NS < made.st_ctime_ns
    came_together = changed - made.st_ctime_ns < _TOGETHER_NS
    return not (is_copy and came_together and source.startswith(_copied_well))
