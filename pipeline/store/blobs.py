"""Blobs by content digest, in one folder and at a remote.

A blob's name is never trusted: its content is hashed again when it is read. A bad blob is dropped
and counts as missing, so corruption, a torn write or a concurrent eviction is a miss, never an
error. A missing blob is requested from the remote tier, if there is one, and checked in the same
way. A file's mtime is the time of its last use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from blake3 import blake3

from pipeline.store import digest
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError
from pipeline.store.files import is_plain
from pipeline.store.folder import StoreFolder, drop, touch
from pipeline.store.places import blob_name

if TYPE_CHECKING:
    from pipeline.store.remote_tier import RemoteTier, RemoteTierSettings

AT_ONCE = 16  # concurrent requests to the remote
_CORRUPT = "was corrupt and was dropped"
_T = TypeVar("_T")


class MissingBlobError(PipelineError):
    """A blob is not in the store, or its content no longer matches its digest."""


class BlobWriter:
    """A file that hashes what is written to it; `digest` is final once the block has ended."""

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


class BlobStore(StoreFolder):
    """The blobs in a folder, and those of a remote, fetched on demand."""

    def __init__(
        self,
        root: Path,
        remote: RemoteTierSettings | None = None,
        overflow: Path | None = None,
    ) -> None:
        super().__init__(root, overflow)
        self._remote = remote
        self._verified: set[Digest] = set()
        _ = self.remote  # connect before threads start, or each would open its own

    @property
    def remote(self) -> RemoteTier | None:
        """The remote tier, if there is one."""
        return None if self._remote is None else _connect(self._remote)

    def blob_path(self, blob: Digest) -> Path:
        return self.find(blob_name(blob))

    def has(self, blob: Digest) -> bool:
        """Return whether a blob is in the store, after fetching it from the remote if necessary.

        The content of the blob isn't checked.
        """
        return is_plain(self.blob_path(blob)) or self._fetch(blob)

    def obtainable(self, blobs: Iterable[Digest]) -> bool:
        """Return whether each blob is here with the right content, or at the remote.

        The remote is only asked whether it has a blob. Each local blob is hashed once per process;
        bad ones are dropped.
        """
        lacking = [blob for blob in blobs if not self._is_good(blob, fetches=False)]
        return all(self.each_at_once(self._is_remote, lacking))

    def intact(self, blobs: Iterable[Digest]) -> bool:
        """Return whether each blob is here with the right content, after fetching missing ones.

        Each blob is hashed once per process; bad ones are dropped.
        """
        blobs = list(blobs)
        self.fetch(blobs)
        bad = [blob for blob in blobs if not self._is_good(blob)]
        return not bad

    # Requests run concurrently, so that a build waits for one round trip, not one per blob

    def look(self, blobs: Iterable[Digest]) -> None:
        """Ask the remote whether it has the blobs that are missing here."""
        self.each_at_once(self._is_remote, self.lacking(blobs, self.blob_path))

    def fetch(self, blobs: Iterable[Digest]) -> None:
        """Fetch the blobs that are missing here."""
        self.each_at_once(self._fetch, self.lacking(blobs, self.blob_path))

    def lacking(
        self, digests: Iterable[Digest], path: Callable[[Digest], Path]
    ) -> list[Digest]:
        """Return the digests whose files are missing here, or an empty list without a remote."""
        if self.remote is None:
            return []
        return [blob for blob in dict.fromkeys(digests) if not is_plain(path(blob))]

    def each_at_once(
        self, function: Callable[[Digest], _T], digests: Sequence[Digest]
    ) -> list[_T]:
        """Call a function that queries the remote with each digest, up to `AT_ONCE` at a time."""
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
        """Store a blob unless it is already here."""
        return self.put_pieces(digest.hash_bytes(data), lambda: [data])

    def put_pieces(
        self, blob: Digest, pieces: Callable[[], Iterable[bytes | memoryview]]
    ) -> Digest:
        """Store a blob in pieces unless it is already here.

        The caller must know the digest, or verify it with `digest.verified` while the pieces are
        read: they are not hashed here.
        """
        if not self._keep(blob):
            try:
                self._write_pieces(blob, pieces())
            except OSError as error:
                self._give_up_disk(error)
                self._write_pieces(blob, pieces())
            self._verified.add(blob)
        return blob

    def _write_pieces(self, blob: Digest, pieces: Iterable[bytes | memoryview]) -> None:
        with self.writing(blob_name(blob)) as file:
            for piece in pieces:
                _write(file, piece)

    def _keep(self, blob: Digest) -> bool:
        """Return whether a good copy of a blob is here, and mark it as just used.

        Until a result refers to the blob, only its age keeps it from being evicted.
        """
        path = self.blob_path(blob)
        # A blob is verified once per process, without looking for its file again.
        if is_intact := is_plain(path) and (
            blob in self._verified or self._is_good(blob)
        ):
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
        """Store the content of a `scratch` file, which was hashed as it was written."""
        self._publish(file, blob_name(blob))
        self._verified.add(blob)

    def read(self, blob: Digest) -> bytes:
        """Return the verified content of a blob. Raises MissingBlobError; a bad blob is dropped."""

        def read(path: Path) -> bytes | None:
            data = path.read_bytes()
            return data if digest.hash_bytes(data) == blob else None

        return self._checked(blob, read)

    def verified_path(
        self, blob: Digest, once: bool = False, fetches: bool = True
    ) -> Path:
        """Return the path of a blob, after hashing its content.

        Args:
            once: don't hash a blob again that this process has already hashed.
            fetches: request a missing blob from the remote.

        Raises:
            MissingBlobError: the blob is missing or bad; a bad one is dropped.
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
        """Return the result of `read` on the local file or, if that is None, on a fetched copy."""
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
        """Yield the content of a blob in pieces, verified once the last piece has been read.

        Raises MissingBlobError, possibly after most of the content: the caller must then discard
        whatever it made from it.

        Args:
            verifies: False if the caller verifies a digest of everything that it reads.
        """
        path = self.blob_path(blob)
        try:
            if not (is_plain(path) or self._fetch(blob)):
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
        """Fetch a blob from the remote, which hashes it on arrival; return whether it came."""
        if self.remote is None:
            return False
        with suppress(OSError), self.writing(blob_name(blob)) as file:
            if self.remote.fetch_blob(blob, file):
                self._verified.add(blob)
                return True
            raise OSError  # so that nothing is published
        return False

    def push(self, blob: Digest) -> None:
        """Push a local blob to the remote, if there is one."""
        if self.remote is not None and is_plain(self.blob_path(blob)):
            self.remote.push_blob(blob, self.blob_path(blob))


def _write(file: BinaryIO, data: bytes | memoryview) -> int:
    """Write bytes in pieces.

    Linux caches a larger write in a huge page, for which a virtual machine may have to ask its
    host: that takes up to ten times as long.
    """
    view = memoryview(data)
    for begin in range(0, len(view), digest.PIECE):
        file.write(view[begin : begin + digest.PIECE])
    return len(view)


@cache
def _connect(settings: RemoteTierSettings) -> RemoteTier:
    """Return this process's only connection to a remote, so that it is given up only once."""
    return settings.open()


# Locks held by other threads, and fsspec's event loop, don't survive a fork.
os.register_at_fork(after_in_child=_connect.cache_clear)
