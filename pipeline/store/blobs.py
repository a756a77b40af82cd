"""Blobs by content digest, under one folder and at a remote.

Nothing is trusted because of its name: a blob is hashed again when it is read. What is bad is
dropped and then simply not there, so corruption, a torn write or a concurrent eviction are misses,
never errors. What is not there is asked of the remote tier, if there is one, and checked in the
same way. A file's mtime is the time of its last use.
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

AT_ONCE = 16  # questions to the remote
_CORRUPT = "was corrupt and was dropped"
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


class BlobStore(StoreFolder):
    """Blobs in a folder, and those of a remote as they are asked for."""

    def __init__(
        self,
        root: Path,
        remote: RemoteTierSettings | None = None,
        overflow: Path | None = None,
    ) -> None:
        super().__init__(root, overflow)
        self._remote = remote
        self._verified: set[Digest] = set()
        _ = self.remote  # made before threads ask for it, who would each make one

    @property
    def remote(self) -> RemoteTier | None:
        """The remote tier, if there is one."""
        return None if self._remote is None else _connect(self._remote)

    def blob_path(self, blob: Digest) -> Path:
        return self.find(blob_name(blob))

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
                self._give_up_disk(error)
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
