"""Blobs by content digest, under one folder and at a remote.

Nothing is trusted because of its name: a blob is hashed again when it is read. What is bad is
dropped and then simply not there, so corruption, a torn write or a concurrent eviction are misses,
never errors. What is not there is asked of the remote tier, if there is one, and checked in the
same way. A file's mtime is the time of its last use.

A store may be another user's, on a read-only mount, or on a full disk. What can't be written there
goes to a folder of the workspace, the overflow, which has the same names in it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from blake3 import blake3

from pipeline.store import digest
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError
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
from pipeline.store.places import README, blob_name

if TYPE_CHECKING:
    from pipeline.store.remote_tier import RemoteTier, RemoteTierSettings

AT_ONCE = 16  # questions to the remote
_CORRUPT = "was corrupt and has been dropped"
_UNWRITABLE = (*DISK_FULL, errno.EACCES, errno.EPERM, errno.EROFS)
_LEAST_FREE = 1 << 20  # bytes of a disk, below which it counts as full
_WHY = "why.txt"  # the file of the overflow that says why a run needed it
_FILLED = "full"  # the file of the overflow that says that the store's disk became full
_T = TypeVar("_T")


class MissingBlobError(PipelineError):
    """A blob is not in the store, or no longer has the content that its name promises."""


class BlobWriter:
    """A file that hashes what is written to it; `digest` holds once the block has ended."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hasher = blake3()
        self.size = 0

    def write(self, data: bytes | memoryview) -> int:
        self._hasher.update(data)
        self.size += len(data)
        return _write(self._file, data)

    @property
    def digest(self) -> Digest:
        return Digest(self._hasher.hexdigest())


class BlobStore:
    """Blobs in a folder, and those of a remote as they are asked for."""

    def __init__(
        self,
        root: Path,
        remote: RemoteTierSettings | None = None,
        overflow: Path | None = None,
    ) -> None:
        self.root = root
        self.overflow = overflow
        if overflow is not None and overflow.is_symlink():
            # It is a part of build/, in which no link is followed.
            drop(overflow)
            self.overflow = None if overflow.is_symlink() else overflow
        self._is_full = False
        self._remote = remote
        self._verified: set[Digest] = set()
        _ = self.remote  # made before threads ask for it, who would each make one

    @property
    def remote(self) -> RemoteTier | None:
        """The remote tier, if there is one."""
        return None if self._remote is None else _connect(self._remote)

    def blob_path(self, blob: Digest) -> Path:
        return self.find(blob_name(blob))

    def find(self, name: str) -> Path:
        """Return the path of a file: in the overflow if it is there, which is newer than what stood
        in its place in the store, and could not be dropped."""
        if self.overflow is not None and is_plain(self.overflow / name):
            return self.overflow / name
        return self.root / name

    def has(self, blob: Digest) -> bool:
        """Tell whether a blob is there, whatever its content. It is fetched from the remote if only
        that has it."""
        return is_plain(self.blob_path(blob)) or self._fetch(blob)

    def obtainable(self, blobs: Iterable[Digest]) -> bool:
        """Tell whether all blobs are here with the right content, or at the remote, of which only
        this is asked. Each is hashed once per process; bad ones are dropped."""
        lacking = [blob for blob in blobs if not self._is_good(blob, fetches=False)]
        return all(self.each_at_once(self._is_remote, lacking))

    def intact(self, blobs: Iterable[Digest]) -> bool:
        """Tell whether all blobs are here with the right content, after fetching what is not. Each
        is hashed once per process; bad ones are dropped."""
        blobs = list(blobs)
        self.fetch(blobs)
        bad = [blob for blob in blobs if not self._is_good(blob)]
        return not bad

    # Several at once, so that a build waits for a remote's answers once and not for each

    def look(self, blobs: Iterable[Digest]) -> None:
        """Ask the remote whether it has the blobs that are not here."""
        self.each_at_once(self._is_remote, self.lacking(blobs, self.blob_path))

    def fetch(self, blobs: Iterable[Digest]) -> None:
        """Fetch the blobs that are not here."""
        self.each_at_once(self._fetch, self.lacking(blobs, self.blob_path))

    def lacking(
        self, digests: Iterable[Digest], path: Callable[[Digest], Path]
    ) -> list[Digest]:
        """Return those whose files are not here, where a remote can be asked for them."""
        if self.remote is None:
            return []
        return [blob for blob in dict.fromkeys(digests) if not is_plain(path(blob))]

    def each_at_once(
        self, function: Callable[[Digest], _T], digests: Sequence[Digest]
    ) -> list[_T]:
        """Call a function that asks the remote with each digest, some at a time."""
        if len(digests) < 2 or self.remote is None:
            return [function(blob) for blob in digests]
        from concurrent.futures import ThreadPoolExecutor

        threads = ThreadPoolExecutor(AT_ONCE, "pte-store")
        try:
            return list(threads.map(function, digests))
        finally:
            threads.shutdown(cancel_futures=True)

    def _is_remote(self, blob: Digest) -> bool:
        return self.remote is not None and self.remote.has_blob(blob)

    def _is_good(self, blob: Digest, fetches: bool = True) -> bool:
        with suppress(MissingBlobError):
            self.verified_path(blob, once=True, fetches=fetches)
            return True
        return False

    def put(self, data: bytes | memoryview) -> Digest:
        """Store a blob, unless it is there already."""
        return self._put(digest.hash_bytes(data), lambda: [data])

    def put_pieces(self, pieces: Callable[[], Iterable[memoryview]]) -> Digest:
        """Store a blob that is read in pieces, unless it is there already: then it is not read
        again. Raises WrongContentError where it is another one at the second reading."""
        blob = digest.hash_pieces(pieces())
        return self._put(blob, lambda: digest.verified(pieces(), blob))

    def _put(
        self, blob: Digest, pieces: Callable[[], Iterable[bytes | memoryview]]
    ) -> Digest:
        if not self._keep(blob):
            try:
                self._write_pieces(blob, pieces())
            except OSError as error:
                if self._is_full or error.errno not in DISK_FULL:
                    raise
                self._find_overflow(error)
                self._is_full = True  # since a moment ago
                self._write_pieces(blob, pieces())
            self._verified.add(blob)
        return blob

    def _write_pieces(self, blob: Digest, pieces: Iterable[bytes | memoryview]) -> None:
        with self.writing(blob_name(blob)) as file:
            for piece in pieces:
                _write(file, piece)

    def _keep(self, blob: Digest) -> bool:
        """Tell whether a blob is here. It is kept as one that is used now: until a result refers to
        it, nothing but its age keeps it."""
        path = self.blob_path(blob)
        if is_intact := is_plain(path) and self._is_good(blob):
            touch(path)
        return is_intact

    @contextmanager
    def writer(self) -> Iterator[BlobWriter]:
        """Store a blob that is written in pieces, and whose digest is known only at its end."""
        with self.scratch() as file:
            blob = BlobWriter(file)
            yield blob
            self.adopt(file, blob.digest)

    def adopt(self, file: BinaryIO, blob: Digest) -> None:
        """Store what was written to a `scratch` file and hashed on the way."""
        self._publish(file, blob_name(blob))
        self._verified.add(blob)

    def put_file(self, path: Path) -> Digest:
        """Store the content of a file, unless it is there already. Raises OSError."""
        blob = digest.hash_file(path)
        if self._keep(blob):
            return blob
        with open(path, "rb") as source, self.writer() as file:
            while piece := source.read(digest.PIECE):
                file.write(piece)
        return file.digest

    def read(self, blob: Digest) -> bytes:
        """Return the verified content. Raises MissingBlobError; a bad blob is dropped."""

        def read(path: Path) -> bytes | None:
            data = path.read_bytes()
            return data if digest.hash_bytes(data) == blob else None

        return self._checked(blob, read)

    def verified_path(
        self, blob: Digest, once: bool = False, fetches: bool = True
    ) -> Path:
        """Return the path of a blob, after hashing its content.

        Args:
            once: do not hash a blob again that this process has hashed before.
            fetches: ask the remote for what is not here.

        Raises:
            MissingBlobError: it is not there; a bad one is dropped.
        """
        path = self.blob_path(blob)
        if not (once and blob in self._verified and is_plain(path)):
            self._checked(
                blob, lambda path: digest.hash_file(path) == blob or None, fetches
            )
            self._verified.add(blob)
        return path

    def _checked(
        self, blob: Digest, read: Callable[[Path], _T | None], fetches: bool = True
    ) -> _T:
        """Return what `read` gives of the local file or, where it gives None, of a fetched one."""
        path = self.blob_path(blob)
        why = "is missing"
        for local in (True, False):
            if not local and not (fetches and self._fetch(blob)):
                break
            if not is_plain(path):
                continue
            try:
                content = read(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                why = f"cannot be read ({error.strerror})"
                continue
            if content is not None:
                return content
            drop(path)
            why = _CORRUPT
        raise self._missing(blob, why)

    def stream(self, blob: Digest, verifies: bool = True) -> Iterator[bytes]:
        """Yield the content in pieces, verified when the last one has been read, or by whoever
        knows the digest of all that it reads.

        Raises MissingBlobError, possibly after most of the content: what was made of it must then
        be thrown away.
        """
        path = self.blob_path(blob)
        try:
            if not self.has(blob):
                raise FileNotFoundError(path)
            pieces = digest.read_pieces(path)
            yield from digest.verified(pieces, blob) if verifies else pieces
        except OSError as error:
            raise self._missing(blob, f"is missing ({error})") from error
        except digest.WrongContentError as error:
            drop(path)
            raise self._missing(blob, _CORRUPT) from error

    def _missing(self, blob: Digest, why: str) -> MissingBlobError:
        return MissingBlobError(f"store {self.root}: blob {blob} {why}")

    def _fetch(self, blob: Digest) -> bool:
        """Fetch a blob from the remote, which hashes it on its way; tell whether it came."""
        if self.remote is None:
            return False
        with suppress(OSError), self.writing(blob_name(blob)) as file:
            if self.remote.fetch_blob(blob, file):
                self._verified.add(blob)
                return True
            raise OSError  # nothing is published
        return False

    def push(self, blob: Digest) -> None:
        """Push a blob that is here to the remote, if there is one."""
        if self.remote is not None and is_plain(self.blob_path(blob)):
            self.remote.push_blob(blob, self.blob_path(blob))

    # Writing

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """Open a file that is at its place once the context has ended, and not if it raises."""
        with self.scratch() as file:
            yield file
            self._publish(file, name)

    def _publish(self, file: BinaryIO, name: str) -> None:
        try:
            _move(file, self.root, name)
        except OSError as error:
            _move(file, self._find_overflow(error), name)
            return
        if self.overflow is not None and is_plain(self.overflow / name):
            drop(self.overflow / name)  # of a time when the store took nothing

    @contextmanager
    def scratch(self) -> Iterator[BinaryIO]:
        """Open a file that is in the store's folder for as long as the context lasts."""
        with ExitStack() as stack:
            try:
                file = stack.enter_context(self._open_scratch(self.root))
            except OSError as error:
                overflow = self._find_overflow(error)
                file = stack.enter_context(self._open_scratch(overflow))
            try:
                yield file
            except Exception as error:
                self._note_filled(error)
                raise

    def _note_filled(self, error: Exception) -> None:
        """Note that the store's disk became full while something was written there, so that all
        that this run writes from now on goes to the overflow."""
        is_filled = _is_full(self.root) or (
            isinstance(error, OSError) and error.errno in DISK_FULL
        )
        if is_filled and self.overflow is not None and not self.is_filled():
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.root))
            with suppress(OSError):
                self._find_overflow(full)
                write_atomically(self.overflow / _FILLED, b"")

    def is_filled(self) -> bool:
        """Tell whether the store's disk became full during this run, in any process."""
        return self.overflow is not None and is_plain(self.overflow / _FILLED)

    @contextmanager
    def _open_scratch(self, root: Path) -> Iterator[BinaryIO]:
        """Open a file in the folder `tmp` of a root. Raises OSError, for a full disk too."""
        readme = root / "README"
        if not is_plain(readme):
            write_atomically(readme, README.encode())
        is_full = self._is_full or self.is_filled()
        if root == self.root and (is_full or _is_full(root)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(root))
        with temporary(root / "tmp", root) as file:
            yield file

    def _find_overflow(self, error: OSError) -> Path:
        """Return the folder that takes what the store can't, and note why it can't. Raises the
        error where it is another one, or that folder can't be written either."""
        if self.overflow is None or error.errno not in _UNWRITABLE:
            raise error
        why = self.overflow / _WHY
        if not is_plain(why):
            try:
                # Of what is moved, the place that refuses it, and not the file.
                refused = error.filename2 and os.path.dirname(error.filename2)
                text = f"{error.strerror}: {refused or error.filename or self.root}"
                write_atomically(why, text.encode())
            except OSError:
                raise error from None
        return self.overflow

    def forget_overflow(self) -> None:
        """Forget why the last run needed the overflow."""
        if self.overflow is not None:
            drop(self.overflow / _WHY)
            drop(self.overflow / _FILLED)

    def why_overflow(self) -> str:
        """Return why this run needed the overflow; "" where it did not."""
        with suppress(OSError):
            if self.overflow is not None:
                return (self.overflow / _WHY).read_text()
        return ""


def _move(file: BinaryIO, root: Path, name: str) -> None:
    """Move a `temporary` to its place in a store's folder. Raises OSError."""
    # Not flushed to the disk, which would take a tenth of the time of a build that puts new
    # weights in: of what power loss leaves the content is not that of its name, and so a miss.
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
    # Some filesystems tell no sizes.
    return status.f_blocks > 0 and status.f_bavail * status.f_frsize < _LEAST_FREE


def _write(file: BinaryIO, data: bytes | memoryview) -> int:
    """Write bytes in pieces. Linux caches a larger one in a huge page, for which a virtual machine
    may have to ask its host: that takes up to ten times as long."""
    view = memoryview(data)
    for begin in range(0, len(view), digest.PIECE):
        file.write(view[begin : begin + digest.PIECE])
    return len(view)


@cache
def _connect(settings: RemoteTierSettings) -> RemoteTier:
    """Return the process's one remote of these settings, so that it is given up once if it does not
    answer."""
    return settings.open()


# Locks that another thread holds, and fsspec's event loop, do not outlive a fork.
os.register_at_fork(after_in_child=_connect.cache_clear)


def touch(path: Path) -> None:
    """Note that a file is used now."""
    with suppress(OSError):
        os.utime(path)


def drop(path: Path) -> None:
    """Remove what is bad; in a store that cannot be written it stays, and stays a miss."""
    with suppress(OSError):
        remove(path)
