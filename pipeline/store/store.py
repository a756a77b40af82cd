"""The store: blobs by content digest, action results by action digest, under one folder.

Nothing in it is trusted because of its name: a blob is hashed again when it is read, and an action
result carries a digest of itself. What is bad is dropped and then simply not there, so corruption,
a torn write or a concurrent eviction are misses, never errors. Nothing is ever unpickled.

What is not there is asked of the remote tier, if there is one, and checked in the same way. A
file's mtime is the time of its last use.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from blake3 import blake3

from pipeline.store import digest
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError
from pipeline.store.files import publish, temporary

if TYPE_CHECKING:
    from pipeline.store.remote import Remote, RemoteSettings

LOCK_PATIENCE = 900.0  # seconds to wait for another process that computes the same
_PIECE = 1 << 22  # bytes
_HEX = frozenset("0123456789abcdef")
_README = """\
This folder is the store of pte-pipeline: compiled methods and linked packages, by content.
It can be deleted at any time; what is needed again is built again.
"""
_T = TypeVar("_T")


class MissingBlobError(PipelineError):
    """A blob that is not in the store, or no longer has the content that its name promises."""


def default_root() -> Path:
    """`$XDG_CACHE_HOME/pte-pipeline`, shared by all checkouts of the user."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "pte-pipeline"


class BlobWriter:
    """A file that hashes what is written to it; `digest` holds once the block has ended."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hasher = blake3()
        self.size = 0

    def write(self, data: bytes | memoryview) -> int:
        self._hasher.update(data)
        self.size += len(data)
        return self._file.write(data)

    @property
    def digest(self) -> Digest:
        return Digest(self._hasher.hexdigest())


@dataclass(frozen=True)
class Entry:
    """What an action gave, its whole key, and the seconds of wall time that it took."""

    key: Mapping[str, Any]
    result: Mapping[str, Any]
    seconds: float


class Store:
    """`cap` is the size in bytes down to which the least recently used is evicted after a run."""

    def __init__(
        self, root: Path, remote: RemoteSettings | None = None, cap: int | None = None
    ) -> None:
        self.root = root
        self.cap = cap
        self.remote = _connect(remote) if remote is not None else None
        self._verified: set[Digest] = set()

    def __reduce__(self) -> Any:  # a worker verifies for itself
        return Store, (self.root, self.remote and self.remote.settings, self.cap)

    def blob_path(self, blob: Digest) -> Path:
        return self.root / "blobs" / blob[:2] / blob[2:]

    def blob_of(self, path: Path) -> Digest:
        """The inverse of `blob_path`."""
        return Digest(path.parent.name + path.name)

    def action_path(self, action: Digest) -> Path:
        return self.root / "actions" / action[:2] / f"{action[2:]}.json"

    # Blobs

    def has(self, blob: Digest) -> bool:
        """Whether it is there, whatever its content; fetched where only the remote has it."""
        return self.blob_path(blob).is_file() or self._fetch(blob)

    def intact(self, blobs: Iterable[Digest]) -> bool:
        """Whether all are there with the right content; each is hashed once per process, and bad
        ones are dropped."""
        bad = [blob for blob in blobs if not self._good(blob)]
        return not bad

    def _good(self, blob: Digest) -> bool:
        if blob in self._verified and self.blob_path(blob).is_file():
            return True
        try:
            self.verified_path(blob)
        except MissingBlobError:
            return False
        self._verified.add(blob)
        return True

    def put(self, data: bytes | memoryview) -> Digest:
        blob = digest.of_bytes(data)
        path = self.blob_path(blob)
        if path.is_file() and self._good(blob):
            _touch(path)  # until a result refers to it, nothing but its age keeps it
        else:
            with self._writing(path) as file:
                file.write(data)
            self._verified.add(blob)
        return blob

    @contextmanager
    def writer(self) -> Iterator[BlobWriter]:
        """Streams a blob whose digest is known only at its end."""
        self._prepare()
        with temporary(self.root / "tmp") as file:
            blob = BlobWriter(file)
            yield blob
            publish(file, self.blob_path(blob.digest), mode=0o444, durable=True)
            self._verified.add(blob.digest)

    def read(self, blob: Digest) -> bytes:
        """The content, verified. Raises MissingBlobError; a bad blob is dropped."""

        def content(path: Path) -> bytes | None:
            data = path.read_bytes()
            return data if digest.of_bytes(data) == blob else None

        return self._checked(blob, content)

    def verified_path(self, blob: Digest) -> Path:
        """The path of a blob whose content was hashed just now. Raises MissingBlobError."""
        return self._checked(blob, lambda path: path if digest.of_file(path) == blob else None)

    def known_path(self, blob: Digest) -> Path:
        """Like `verified_path`, but hashed once per process, when it was written or first read."""
        return self.blob_path(blob) if self._good(blob) else self.verified_path(blob)

    def _checked(self, blob: Digest, look: Callable[[Path], _T | None]) -> _T:
        """What `look` gives, first of the file that is here, then of one fetched anew."""
        path = self.blob_path(blob)
        why = "is missing"
        for there in (True, False):
            if not there and not self._fetch(blob):
                break
            try:
                found = look(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                why = f"cannot be read ({error.strerror})"
                continue
            if found is not None:
                return found
            _forget(path)
            why = "was corrupt and has been dropped"
        raise MissingBlobError(f"store {self.root}: blob {blob} {why}")

    def stream(self, blob: Digest) -> Iterator[bytes]:
        """The content in pieces, verified when the last one has been read. Raises MissingBlobError,
        possibly after most of the content: what was made of it must then be thrown away."""
        path = self.blob_path(blob)
        hasher = blake3()
        try:
            self.has(blob)
            with open(path, "rb") as file:
                while piece := file.read(_PIECE):
                    hasher.update(piece)
                    yield piece
        except OSError as error:
            raise MissingBlobError(
                f"store {self.root}: blob {blob} is missing ({error})"
            ) from error
        if hasher.hexdigest() != blob:
            _forget(path)
            raise MissingBlobError(
                f"store {self.root}: blob {blob} was corrupt and has been dropped"
            )

    def _fetch(self, blob: Digest) -> bool:
        """Whether the remote gave it. What it gives is hashed on its way."""
        if self.remote is None:
            return False
        with suppress(OSError), self._writing(self.blob_path(blob)) as file:
            if self.remote.fetch_blob(blob, file):
                return True
            raise OSError  # nothing is published
        return False

    # Action results

    def lookup(self, key: Mapping[str, Any]) -> Entry | None:
        return self.entry(digest.of_json(key))

    def result(self, action: Digest) -> Mapping[str, Any] | None:
        """What the action gave, or None where it is unknown, unreadable or damaged."""
        entry = self.entry(action)
        return entry.result if entry else None

    def result_of(self, key: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return self.result(digest.of_json(key))

    def key(self, action: Digest) -> Mapping[str, Any] | None:
        entry = self.entry(action)
        return entry.key if entry else None

    def entry(self, action: Digest) -> Entry | None:
        path = self.action_path(action)
        entry = self.entry_at(path, action)
        if entry is not None:
            _touch(path)
        elif self.remote is not None:
            record = self.remote.fetch_result(action)
            entry = entry_of(record, action)
            if entry is not None:
                with suppress(OSError), self._writing(path) as file:
                    file.write(digest.canonical_json(record))
        return entry

    def entry_at(self, path: Path, action: Digest) -> Entry | None:
        """The entry of a file, which goes if it is bad; this is not counted as a use."""
        try:
            entry = entry_of(json.loads(path.read_bytes()), action)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            entry = None
        if entry is None:
            _forget(path)
        return entry

    def put_result(
        self, key: Mapping[str, Any], result: Mapping[str, Any], seconds: float = 0.0
    ) -> Digest:
        """Records what an action gave; the blobs that it names must be there. The remote gets them
        first, so that no result of its is without its blobs."""
        action = digest.of_json(key)
        record = record_of(key, result, seconds)
        with self._writing(self.action_path(action)) as file:
            file.write(digest.canonical_json(record))
        if self.remote is not None and self.remote.settings.pushes:
            for blob in references(result):
                if self.blob_path(blob).is_file():
                    self.remote.push_blob(blob, self.blob_path(blob))
            self.remote.push_result(action, record)
        return action

    # What several processes share

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Keeps other processes that ask for the same name waiting, so that they then find in the
        store what this one computes. Without a lock things are only computed twice, so neither a
        filesystem that has none nor a holder that hangs is an error."""
        from filelock import FileLock, Timeout

        path = self.root / "locks" / name
        lock = FileLock(path, timeout=LOCK_PATIENCE)
        try:
            self._prepare()
            path.parent.mkdir(exist_ok=True)
            lock.acquire()
        except (OSError, Timeout):
            yield
            return
        try:
            yield
        finally:
            _forget(path)  # those who wait for it notice, and make another
            lock.release()

    @contextmanager
    def _writing(self, path: Path) -> Iterator[BinaryIO]:
        self._prepare()
        with temporary(self.root / "tmp") as file:
            yield file
            publish(file, path, mode=0o444, durable=True)

    def _prepare(self) -> None:
        readme = self.root / "README"
        if not readme.exists():
            self.root.mkdir(parents=True, exist_ok=True)
            readme.write_text(_README)


_remotes: dict[str, Remote] = {}


def _connect(settings: RemoteSettings) -> Remote:
    """One per process, so that a remote that does not answer is given up once."""
    from pipeline.store.remote import Remote  # which most no-op runs do without

    name = repr((settings, settings.options))
    if name not in _remotes:
        _remotes[name] = Remote(settings)
    return _remotes[name]


def record_of(key: Mapping[str, Any], result: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """An action result as it is stored, with a digest of itself."""
    seconds = round(seconds, 3)
    check = digest.of_json([key, result, seconds])
    return {"key": key, "result": result, "seconds": seconds, "check": check}


def entry_of(record: Any, action: Digest) -> Entry | None:
    """The entry that a record stands for, if it is whole and that of the action."""
    try:
        entry = Entry(record["key"], record["result"], record["seconds"])
        check = digest.of_json([entry.key, entry.result, entry.seconds])
        good = record["check"] == check and digest.of_json(entry.key) == action
    except (ValueError, TypeError, KeyError):
        return None
    return entry if good else None


def references(value: Any) -> Iterator[Digest]:
    """All that can be the digest of a blob in an action's result. That it may name something else
    too does no harm: what is not in the store is passed over."""
    if isinstance(value, str):
        if len(value) == 64 and _HEX.issuperset(value):
            yield Digest(value)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from references(inner)


def _touch(path: Path) -> None:
    with suppress(OSError):
        os.utime(path)


def _forget(path: Path) -> None:
    """Removes what is bad; in a store that can't be written it stays, and stays a miss."""
    with suppress(OSError):
        path.unlink()
