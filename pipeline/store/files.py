"""Writes files atomically: a reader sees the old content or the new, never a mix."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.store.digest import canonical_json, hash_bytes

TEMPORARY_PREFIX = ".tmp-"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
LINK_OUT = "It is a link that leads out of the workspace"

# The records in each package's folder.
MANIFEST, CONTENTS, REPORT = "manifest.json", "contents.json", "report.json"
# What a runtime must provide, and its operators in the form of ExecuTorch's selective build.
CONTRACT, SELECTION = "contract.json", "selected_operators.yaml"
ETRECORD = "etrecord.bin"

# The files of build/ next to the packages' folders.
BUILD_FILES = (
    *(CONTRACT, "events.jsonl", "index.html", "junit.xml"),
    *("run.json", SELECTION, "summary.md", "timeline.json"),
)


def read_record(path: Path) -> dict[str, Any] | None:
    """Read a JSON record, or return None if there is none that can be read."""
    try:
        record = json.loads(path.read_bytes()) if is_plain(path) else None
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def read_own_record(path: Path) -> dict[str, Any]:
    """Read a record that `own_record_bytes` wrote; return {} if it is missing or was altered."""
    try:
        stat_file(path)
        content = path.read_bytes()
    except OSError:
        return {}
    # A view, since copies of it cost a no-op run.
    head = _head_of(memoryview(content)[_HEAD:-1])
    is_whole = content.startswith(head) and content.endswith(b"}")
    return json.loads(content)["record"] if is_whole else {}


def own_record_bytes(record: Mapping[str, Any]) -> bytes:
    """Return the bytes of a record that only this package reads, with a digest of its content."""
    content = canonical_json(record)
    return b"%b%b}" % (_head_of(content), content)


def _head_of(content: bytes | memoryview) -> bytes:
    return b'{"check":"%b","record":' % hash_bytes(content).encode()


_HEAD = len(_head_of(b""))


def record_bytes(record: Mapping[str, Any], sort_keys: bool = True) -> bytes:
    """Return the bytes of a record's file; equal records have equal bytes."""
    text = json.dumps(record, indent=1, sort_keys=sort_keys, allow_nan=False)
    return f"{text}\n".encode()


def stat_file(path: Path) -> os.stat_result:
    """Return the stat of a regular file.

    Raises OSError, also for a folder, a pipe or a device, because opening one could block forever.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        code = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        text = os.strerror(code) if code == errno.EISDIR else "It is not a regular file"
        raise OSError(code, text, str(path))
    return status


def inside(path: Path, folders: Iterable[Path]) -> Path:
    """Return a path that others named, if it leads to a regular file in one of these folders.

    Raises OSError if it isn't a regular file, or is outside all the folders once links are
    resolved.
    """
    try:
        stat_file(path)
        real = os.path.realpath(path)
    except ValueError as error:  # NUL
        raise OSError(errno.EINVAL, "It is not a path", str(path)) from error
    for folder in folders:
        if real.startswith(os.path.join(os.path.realpath(folder), "")):
            return path
    raise OSError(errno.EACCES, LINK_OUT, str(path))


def read_text_file(path: Path, most: int = 1 << 20) -> bytes:
    """Read a file that people edit, of at most `most` bytes. Raises OSError."""
    if stat_file(path).st_size > most:
        raise OSError(errno.EFBIG, f"It has more than {most:,} bytes", str(path))
    with open(path, "rb") as file:
        return file.read(most)


def is_plain(path: str | Path) -> bool:
    """Return whether a path is a regular file, and not a folder, a link or a FIFO."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def remove(path: Path) -> None:
    """Remove whatever is at a path, a folder with its contents; links are not followed.

    Raises OSError if something remains.
    """
    try:
        path.unlink(missing_ok=True)
    except NotADirectoryError:  # one of its parents is a file
        return
    except OSError:
        if not path.is_dir() or path.is_symlink():
            raise
        shutil.rmtree(path)


def clear_place(path: Path) -> None:
    """Remove anything at a path that isn't a regular file. Raises OSError."""
    if os.path.lexists(path) and not is_plain(
        path
    ):  # a file that another process has made meanwhile stays
        remove(path)


def make_folder(folder: Path, root: Path) -> None:
    """Make a folder below `root`, and its parents from `root` on.

    A file in the place of a folder is damage and is removed; so is a link, which would redirect
    what is written. `root` itself may be a link. Raises OSError.
    """
    if not os.path.isdir(root):
        root.mkdir(parents=True, exist_ok=True)
    path = str(root)
    for name in folder.parts[len(root.parts) :]:
        path = f"{path}{os.sep}{name}"
        if not _is_own_folder(path):
            try:
                os.mkdir(path)
            except FileExistsError:
                # Another process may have made the folder meanwhile, which must stay.
                with suppress(FileNotFoundError, IsADirectoryError):
                    os.unlink(path)
                with suppress(FileExistsError):
                    os.mkdir(path)


def _is_own_folder(path: str) -> bool:
    """Return whether a path is a folder itself, not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def name_full_disk(
    error: OSError, folder: str | Path, size: int | None = None
) -> OSError:
    """Return the error for a full disk, with the folder and its free and needed bytes.

    Args:
        size: the number of bytes that are needed, or None if unknown.
    """
    with suppress(OSError):
        free = shutil.disk_usage(folder).free
        need = "more" if size is None else f"{size:,}"
        text = f"{error.strerror} ({free:,} bytes are free, {need} are needed)"
        return OSError(error.errno, text, str(folder))
    return error


@contextmanager
def temporary(
    folder: Path, root: Path | None = None, size: int | None = None
) -> Iterator[BinaryIO]:
    """Open a new file in `folder`, removed at the end of the block unless `publish` moved it.

    The file stays locked while it is written, so that `sweep` recognizes files of killed processes,
    regardless of the clock and of the machine they ran on. Anything in the place of a folder
    between `root` and the file is replaced. `size` is the size of the whole content in bytes, for
    the error of a full disk.
    """
    make_folder(folder, root or folder)
    file = _locked(folder)
    try:
        with file:
            yield file
    except OSError as error:
        if error.errno not in DISK_FULL or error.filename is not None:
            raise
        _unlink(file.name)  # first, so that its room counts as free
        raise name_full_disk(error, folder, size) from error
    finally:
        _unlink(file.name)


def _unlink(path: str) -> None:
    """Remove a temporary file, unless it was published."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def _locked(folder: Path) -> BinaryIO:
    while True:
        path = os.path.join(
            folder, f"{TEMPORARY_PREFIX}{os.getpid()}-{os.urandom(6).hex()}"
        )
        try:
            file = open(path, "xb")  # noqa: SIM115
        except OSError as error:  # blame the folder, not a name nobody knows
            raise OSError(error.errno, error.strerror, str(folder)) from error
        with suppress(OSError):  # a filesystem without locks; nothing is swept there
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.exists(path):
            return file
        file.close()  # it was swept after it was opened and before it was locked


def open_locked(path: Path, seconds: float) -> BinaryIO:
    """Open a file, and lock it as soon as no other process has it locked.

    Raises OSError if that takes longer than `seconds`, or if the filesystem has no locks.
    """
    end = time.monotonic() + seconds
    while True:
        file = open(path, "ab")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_nlink:  # its last holder didn't remove it
                return file
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        file.close()


def sweep(folder: Path) -> int:
    """Remove the temporary files that killed processes left in a folder; return their number."""
    removed = 0
    for path in filter(is_plain, folder.glob(f"{TEMPORARY_PREFIX}*")):
        with suppress(OSError), open(path, "rb") as file:
            # Raises while the file's writer is alive.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            removed += 1
    return removed


def publish(file: BinaryIO, target: Path, mode: int, durable: bool = False) -> None:
    """Move a `temporary` to its final path in the same filesystem, replacing even a folder there.

    Args:
        mode: the permissions of the file.
        durable: flush the content to the disk before the name, so that power loss can't leave a
            file with the right size and times but without its content.
    """
    file.flush()
    os.fchmod(file.fileno(), mode)
    if durable:
        os.fsync(file.fileno())
    try:
        os.replace(file.name, target)
    except IsADirectoryError:
        remove(target)
        os.replace(file.name, target)


@contextmanager
def replacing(
    path: Path,
    durable: bool = False,
    root: Path | None = None,
    size: int | None = None,
) -> Iterator[BinaryIO]:
    """Open a binary file that becomes `path` when the block ends, or vanishes if the block raises.

    `size` as in `temporary`.
    """
    with temporary(path.parent, root, size) as file:
        yield file
        publish(file, path, 0o644, durable)


def write_atomically(path: Path, data: bytes, root: Path | None = None) -> None:
    """Write a file, replacing what is there or, below `root`, in the place of its folders."""
    with replacing(path, root=root, size=len(data)) as file:
        file.write(data)


def copy_atomically(
    source: Path, target: Path, root: Path, durable: bool = True
) -> None:
    """Copy a file, in the kernel if the filesystem can (a reflink if it shares extents).

    Never makes a hard link, since a user may edit the copy. `durable` as in `publish`.
    """
    size = source.stat().st_size
    with (
        replacing(target, durable, root, size) as file,
        open(source, "rb") as content,
    ):
        try:
            while os.copy_file_range(content.fileno(), file.fileno(), 1 << 30):
                pass
        except (
            AttributeError,
            OSError,
        ):  # not Linux, across filesystems, or a filesystem that can't
            content.seek(0)
            file.seek(0)
            file.truncate()
            shutil.copyfileobj(content, file, 1 << 20)
