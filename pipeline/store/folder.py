"""The files of a store, by name, in its folder or, if that can't be written to, in the overflow.

A store may belong to another user, be on a read-only mount, or be on a full disk. Files that can't
be written there go to a folder of the workspace, the overflow, under the same names.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pipeline.store.files import (
    DISK_FULL,
    copy_atomically,
    is_plain,
    make_folder,
    publish,
    remove,
    temporary,
    write_atomically,
)
from pipeline.store.places import README

_UNWRITABLE = (*DISK_FULL, errno.EACCES, errno.EPERM, errno.EROFS)
_LEAST_FREE = 1 << 20  # bytes; a disk with less free space counts as full
_WHY = "why.txt"  # the file of the overflow that says why a run needed it
_FILLED = "full"  # the file of the overflow that says that the store's disk became full


class StoreFolder:
    """The folder of a store, and the overflow for files that can't be written there."""

    def __init__(self, root: Path, overflow: Path | None = None) -> None:
        self.root = root
        self.overflow = overflow
        if overflow is not None and overflow.is_symlink():
            # The overflow is part of build/, where no link is followed.
            drop(overflow)
            self.overflow = None if overflow.is_symlink() else overflow
        self._is_full = False

    def find(self, name: str) -> Path:
        """Return the path of a file: in the overflow if it is there, otherwise in the store.

        A file in the overflow is newer than one of this name in the store, which couldn't be
        dropped.
        """
        return self._find_in_overflow(name) or self.root / name

    def _find_in_overflow(self, name: str) -> Path | None:
        # Joined as strings, since joining paths takes longer than looking for the file.
        if self.overflow is not None and is_plain(f"{self.overflow}/{name}"):
            return self.overflow / name
        return None

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """Open a file that is published as `name` when the block ends, unless the block raises."""
        with self.scratch() as file:
            yield file
            self._publish(file, name)

    def _publish(self, file: BinaryIO, name: str) -> None:
        try:
            _move(file, self.root, name)
        except OSError as error:
            _move(file, self._find_overflow(error), name)
            return
        if older := self._find_in_overflow(name):
            drop(older)  # from when the store wasn't writable

    @contextmanager
    def scratch(self) -> Iterator[BinaryIO]:
        """Open a temporary file in the store's folder, removed at the end of the block."""
        with ExitStack() as stack:
            try:
                file = stack.enter_context(self._open_scratch(self.root))
            except OSError as error:
                file = stack.enter_context(
                    self._open_scratch(self._find_overflow(error))
                )
            try:
                yield file
            except Exception as error:
                self._note_filled(error)
                raise

    def _note_filled(self, error: Exception) -> None:
        """Note that the store's disk is full.

        From now on, this run writes everything to the overflow.
        """
        is_filled = _is_full(self.root) or (
            isinstance(error, OSError) and error.errno in DISK_FULL
        )
        if is_filled and self.overflow is not None and not self.is_filled():
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.root))
            with suppress(OSError):
                self._find_overflow(full)
                write_atomically(self.overflow / _FILLED, b"")

    def is_filled(self) -> bool:
        """Return whether the store's disk became full during this run, in any process."""
        return self._find_in_overflow(_FILLED) is not None

    def _open_scratch(self, root: Path) -> AbstractContextManager[BinaryIO]:
        """Open a file in the folder `tmp` of a root. Raises OSError, also if the disk is full."""
        if not is_plain(f"{root}/README"):
            write_atomically(root / "README", README.encode())
        if root == self.root and (self._is_full or self.is_filled() or _is_full(root)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(root))
        return temporary(root / "tmp", root)

    def _find_overflow(self, error: OSError) -> Path:
        """Return the overflow, and note there why the store can't be written to.

        Raises `error` if it has another cause, or if the overflow can't be written to either.
        """
        is_other = error.errno not in _UNWRITABLE and self.root.is_dir()
        if self.overflow is None or is_other:
            raise error
        why = self.overflow / _WHY
        if not is_plain(why):
            try:
                # For a failed move, name the destination that refused the file, not the file.
                refused = error.filename2 and os.path.dirname(error.filename2)
                text = f"{error.strerror}: {refused or error.filename or self.root}"
                write_atomically(why, text.encode())
            except OSError:
                raise error from None
        return self.overflow

    def _give_up_disk(self, error: OSError) -> None:
        """Write to the overflow from now on, because the disk has just become full.

        Raises `error` if it has another cause, or if the disk was already given up.
        """
        if self._is_full or error.errno not in DISK_FULL:
            raise error
        self._find_overflow(error)
        self._is_full = True

    def forget_overflow(self) -> None:
        """Forget why the last run needed the overflow."""
        if self.overflow is not None:
            drop(self.overflow / _WHY)
            drop(self.overflow / _FILLED)

    def why_overflow(self) -> str:
        """Return why this run needed the overflow, or "" if it didn't."""
        with suppress(OSError):
            if why := self._find_in_overflow(_WHY):
                return why.read_text()
        return ""


def _move(file: BinaryIO, root: Path, name: str) -> None:
    """Move a `temporary` to its place in a store's folder. Raises OSError."""
    # Not flushed to the disk, which would take a tenth of the time of a build that refits new
    # weights: content that power loss damages no longer matches its name, and so is a miss.
    path = root / name
    make_folder(path.parent, root)
    try:
        publish(file, path, mode=0o444)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy_atomically(Path(file.name), path, root, durable=False)


def _is_full(folder: Path) -> bool:
    status = os.statvfs(folder)
    # Some filesystems report no sizes.
    return status.f_blocks > 0 and status.f_bavail * status.f_frsize < _LEAST_FREE


def touch(path: Path) -> None:
    """Mark a file as used now."""
    with suppress(OSError):
        os.utime(path)


def drop(path: Path) -> None:
    """Remove a bad file if possible; in a store that can't be written to, it stays as a miss."""
    with suppress(OSError):
        remove(path)
