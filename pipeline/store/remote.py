"""The remote tier of the store: the same blobs and action results, wherever fsspec reaches.

    <url>/blobs/ab/cdef...          content, named by its digest
    <url>/actions/ab/cdef....json   {"record": ..., "signature": ..., "signer": ...}

The remote is never trusted. A blob is hashed while it is fetched; a result must be signed by a
trusted key where keys are configured, and whoever fetches it checks that it belongs to its action.
Nor is it relied on: what it does wrong is counted and is a miss, every step that it takes has a
limit of time, and after a few errors in a row it is given up. So it can make a build slower, but
neither wrong nor fail.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakSet

from blake3 import blake3

from pipeline.store import digest
from pipeline.store.digest import Digest, canonical_json
from pipeline.store.errors import PipelineError
from pipeline.store.remote_fs import RemoteError, RemoteFiles
from pipeline.store.signing import Keys, load_keys

RESULT_LIMIT = 1 << 26  # bytes, as the one below
BLOB_LIMIT = 1 << 34
PATIENCE = 3  # errors in a row
_PIECE = 1 << 22  # bytes read in a step
_DOMAIN = b"pte-pipeline result\n"
_EMPTY = digest.of_bytes(b"")


@dataclass(frozen=True)
class RemoteSettings:
    """Where the remote is, and whom to believe.

    With keys, results are pushed only with a `signing_key`, and only those are fetched that it or
    one of `trusted_keys` signed. `options` are those of the fsspec filesystem. `timeout` is in
    seconds, for one step: a question, or one piece of a transfer.
    """

    url: str
    writable: bool = True
    signing_key: Path | None = None
    trusted_keys: tuple[Path, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)
    timeout: float = 20.0

    @property
    def pushes(self) -> bool:
        """Unsigned results would take the place of signed ones and then be ignored."""
        return self.writable and (self.signing_key is not None or not self.trusted_keys)


@dataclass
class Counts:
    """What was asked of the remote and how it went; a question ends as one of the first five, an
    upload as one of `pushed` and `errors`."""

    hits: int = 0
    misses: int = 0
    unsigned: int = 0  # or signed by nobody trusted
    corrupt: int = 0
    errors: int = 0
    pushed: int = 0
    bytes_fetched: int = 0
    bytes_pushed: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            *(getattr(self, each.name) + getattr(other, each.name) for each in fields(self))
        )


class _LocalError(Exception):
    """A file to push that is not what it should be."""


class Remote:
    """Its methods may be called from several threads, after a fork, and after pickling, which
    carries the settings only. `problem` says in one line why it was given up, or is empty."""

    def __init__(self, settings: RemoteSettings) -> None:
        self.settings = settings
        self.problem = ""
        self._given_up = False
        self._denied = False
        self._in_a_row = 0  # errors
        self._absent: set[str] = set()
        self._bad: set[str] = set()  # there, but to be replaced
        self._there: set[str] = set()
        self._keys: Keys | None = None
        self._files = RemoteFiles(settings.url, settings.options, settings.timeout)
        self._start()
        _remotes.add(self)

    def _start(self) -> None:
        """What neither a lock held by another thread nor fsspec's event loop outlives: a fork."""
        self.counts = Counts()
        self._lock = threading.Lock()
        self._files.forget_connection()

    def __reduce__(self) -> Any:
        return Remote, (self.settings,)

    def check(self) -> None:
        """Raises PipelineError for settings that cannot work, whatever the remote does."""
        self._files.check()
        self._keys = load_keys(self.settings.signing_key, self.settings.trusted_keys)

    # Fetching

    def fetch_result(self, action: Digest) -> Any | None:
        """The record, as it was pushed by someone trusted, perhaps for another action; None where
        there is none."""
        name = _result_name(action)
        if not self._asks(name):
            return None
        try:
            record = self._record(b"".join(self._read(name, RESULT_LIMIT)))
        except RemoteError as error:
            self._missed(name, error)
            return None
        self._hit(name)
        return record

    def fetch_blob(self, blob: Digest, file: BinaryIO) -> bool:
        """Whether all of the blob was written to the file; otherwise anything may have been.
        Raises only what the file raises."""
        if blob == _EMPTY:  # which has no range of bytes that could be asked for
            return True
        name = _blob_name(blob)
        if not self._asks(name):
            return False
        hasher = blake3()
        try:
            for piece in self._read(name, BLOB_LIMIT):
                hasher.update(piece)
                file.write(piece)
            if hasher.hexdigest() != blob:
                raise RemoteError("corrupt")
        except RemoteError as error:
            self._missed(name, error)
            return False
        self._hit(name)
        return True

    def _asks(self, name: str) -> bool:
        return self._usable() and name not in self._absent

    def _read(self, name: str, limit: int) -> Iterator[bytes]:
        for piece in self._files.read(name, limit):
            with self._lock:
                self.counts.bytes_fetched += len(piece)
            yield piece

    def _record(self, content: bytes) -> Any:
        try:
            envelope = json.loads(content)
            record = envelope["record"]
            message = _DOMAIN + canonical_json(record)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RemoteError("corrupt") from None
        if not isinstance(record, dict):
            raise RemoteError("corrupt")
        assert self._keys is not None
        if not self._keys.accept(envelope.get("signer"), envelope.get("signature"), message):
            raise RemoteError("unsigned")
        return record

    # Pushing

    def push_result(self, action: Digest, record: Mapping[str, Any]) -> None:
        """Takes the place of what is there, which may be what made this one necessary."""
        name = _result_name(action)
        if not self._pushes():
            return
        assert self._keys is not None
        signer, signature = self._keys.sign(_DOMAIN + canonical_json(record))
        content = canonical_json({"record": record, "signature": signature, "signer": signer})
        if len(content) <= RESULT_LIMIT:
            with self._pushing(name):
                self._write(name, [content])

    def push_blob(self, blob: Digest, path: Path) -> None:
        """Does nothing where it is there already, or where the file has another content."""
        name = _blob_name(blob)
        if blob == _EMPTY or not self._pushes() or name in self._there:
            return
        with suppress(_LocalError), self._pushing(name):
            if name in self._bad or not self._has(name, path):
                self._write(name, _content(blob, path))

    def _pushes(self) -> bool:
        return self.settings.pushes and not self._denied and self._usable()

    def _has(self, name: str, path: Path) -> bool:
        """Whether the remote has a file of this name and size, so probably of this content."""
        try:
            expected = path.stat().st_size
        except OSError as error:
            raise _LocalError from error
        try:
            return self._files.size(name) == expected
        except RemoteError as error:
            if error.count != "misses":
                raise
            return False

    def _write(self, name: str, pieces: Iterable[bytes]) -> None:
        size = self._files.write(name, pieces)
        with self._lock:
            self.counts.pushed += 1
            self.counts.bytes_pushed += size

    def sweep(self) -> int:
        """Removes half-written files that nobody can be writing any more; returns how many."""
        return self._files.sweep() if self._pushes() else 0

    @contextmanager
    def _pushing(self, name: str) -> Iterator[None]:
        try:
            yield
        except RemoteError as error:
            self._failed(error, pushing=True)
        else:
            with self._lock:
                self._in_a_row = 0
                self._absent.discard(name)
                self._bad.discard(name)
                self._there.add(name)

    # What became of it

    def _hit(self, name: str) -> None:
        with self._lock:
            self.counts.hits += 1
            self._in_a_row = 0
            self._there.add(name)

    def _missed(self, name: str, error: RemoteError) -> None:
        if error.count == "errors":
            self._failed(error)
            return
        with self._lock:
            setattr(self.counts, error.count, getattr(self.counts, error.count) + 1)
            self._in_a_row = 0
            self._absent.add(name)
            if error.count != "misses":
                self._bad.add(name)
                self._there.discard(name)

    def _failed(self, error: RemoteError, pushing: bool = False) -> None:
        with self._lock:
            self.counts.errors += 1
            if pushing and error.denied:  # it can still be read
                self._denied = True
                self.problem = self.problem or f"{self._files.shown}: cannot be written: {error}"
                return
            self._in_a_row += 1
            if self._in_a_row >= PATIENCE and not self._given_up:
                self._given_up = True
                self.problem = (
                    f"{self._files.shown}: given up after {PATIENCE} errors in a row: {error}"
                )

    def _usable(self) -> bool:
        if self._keys is None and not self._given_up:
            try:
                self.check()
            except PipelineError as error:
                self.problem = str(error)
                self._given_up = True
        return not self._given_up


_remotes: WeakSet[Remote] = WeakSet()


def _start_all() -> None:
    for remote in _remotes:
        remote._start()


os.register_at_fork(after_in_child=_start_all)


def _blob_name(blob: Digest) -> str:
    return f"blobs/{blob[:2]}/{blob[2:]}"


def _result_name(action: Digest) -> str:
    return f"actions/{action[:2]}/{action[2:]}.json"


def _content(blob: Digest, path: Path) -> Iterator[bytes]:
    """The file in pieces. Raises _LocalError after the last one if they are not the blob."""
    hasher = blake3()
    try:
        with open(path, "rb") as file:
            while piece := file.read(_PIECE):
                hasher.update(piece)
                yield piece
    except OSError as error:
        raise _LocalError from error
    if hasher.hexdigest() != blob:
        raise _LocalError
