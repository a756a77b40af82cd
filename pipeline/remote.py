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

import base64
import errno
import json
import os
import queue
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakSet

from blake3 import blake3

from pipeline import digest
from pipeline.digest import Digest, canonical_json
from pipeline.errors import PipelineError
from pipeline.files import TEMPORARY_PREFIX

RESULT_LIMIT = 1 << 26  # bytes, as the one below
BLOB_LIMIT = 1 << 34
PATIENCE = 3  # errors in a row
_PIECE = 1 << 22  # bytes read in a step
_PART = 1 << 23  # bytes of a part of an upload; S3 wants at least 5 MiB
_DOMAIN = b"pte-pipeline result\n"
_EMPTY = digest.of_bytes(b"")
_INSTALL = "pip install 'pte-pipeline[remote]'"

# Where a file appears when its upload is complete, and a move is a copy.
_ATOMIC = {"abfs", "abfss", "az", "gcs", "gs", "oss", "s3", "s3a"}


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


class _RemoteError(Exception):
    """Why the remote gave nothing; `count` is the one of Counts that it goes to."""

    def __init__(self, count: str, cause: BaseException | None = None) -> None:
        super().__init__(count)
        self.count = count
        self.cause = cause

    def __str__(self) -> str:
        return " ".join(f"{type(self.cause).__name__}: {self.cause}".split())[:500]

    @property
    def errno(self) -> int | None:
        return getattr(self.cause, "errno", None)

    @property
    def denied(self) -> bool:
        """Whether it may, or can, only be read."""
        only_read = isinstance(self.cause, PermissionError | NotImplementedError)
        return only_read or self.errno == errno.EROFS


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
        self._keys: _Keys | None = None
        self._start()
        _remotes.add(self)

    def _start(self) -> None:
        """What neither a lock held by another thread nor fsspec's event loop outlives: a fork."""
        self.counts = Counts()
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._connection: tuple[Any, str] | None = None

    def __reduce__(self) -> Any:
        return Remote, (self.settings,)

    def check(self) -> None:
        """Raises PipelineError for settings that cannot work, whatever the remote does."""
        _check_protocol(self.settings.url)
        self._keys = _load_keys(self.settings)

    # Fetching

    def fetch_result(self, action: Digest) -> Any | None:
        """The record, as it was pushed by someone trusted, perhaps for another action; None where
        there is none."""
        name = _result_name(action)
        if not self._asks(name):
            return None
        try:
            record = self._record(b"".join(self._read(name, RESULT_LIMIT)))
        except _RemoteError as error:
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
                raise _RemoteError("corrupt")
        except _RemoteError as error:
            self._missed(name, error)
            return False
        self._hit(name)
        return True

    def _asks(self, name: str) -> bool:
        return self._usable() and name not in self._absent

    def _read(self, name: str, limit: int) -> Iterator[bytes]:
        """What the remote says the file holds, in pieces. Most files are one: the first piece is
        asked for outright, and the size only when there may be more."""
        filesystem, path = self._locate(name)
        position, size = 0, None
        while size is None or position < size:
            end = position + _PIECE
            try:
                piece = self._ask(filesystem, "cat_file", path, start=position, end=end)
            except _RemoteError as error:
                # Of an empty file, S3 has no range to give.
                if error.errno == errno.EINVAL and self._size(filesystem, path) == 0:
                    raise _RemoteError("corrupt") from error
                raise
            if not isinstance(piece, bytes):
                raise _RemoteError("corrupt")
            position += len(piece)
            with self._lock:
                self.counts.bytes_fetched += len(piece)
            if max(position, size or 0) > limit:
                raise _RemoteError("corrupt")
            yield piece
            if len(piece) != _PIECE:  # the last, or all of it from a server without ranges
                return
            if size is None:
                size = self._size(filesystem, path)

    def _record(self, content: bytes) -> Any:
        try:
            envelope = json.loads(content)
            record = envelope["record"]
            message = _DOMAIN + canonical_json(record)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise _RemoteError("corrupt") from None
        if not isinstance(record, dict):
            raise _RemoteError("corrupt")
        assert self._keys is not None
        if not self._keys.accept(envelope.get("signer"), envelope.get("signature"), message):
            raise _RemoteError("unsigned")
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
            return self._size(*self._locate(name)) == expected
        except _RemoteError as error:
            if error.count != "misses":
                raise
            return False

    def _write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Under its name is the old file or the whole new one."""
        filesystem, path = self._locate(name)
        if self._protocol in _ATOMIC:
            size = self._upload(filesystem, path, pieces)
        else:
            temporary = self._locate(f"tmp/{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(6)}")
            for folder in (path, temporary[1]):
                self._ask(filesystem, "makedirs", folder.rpartition("/")[0], exist_ok=True)
            try:
                size = self._upload(*temporary, pieces)
                self._step(filesystem.mv, temporary[1], path)
            except BaseException:
                with suppress(_RemoteError):
                    self._ask(filesystem, "rm_file", temporary[1])
                raise
        with self._lock:
            self.counts.pushed += 1
            self.counts.bytes_pushed += size

    def sweep(self, older: timedelta = timedelta(days=1)) -> int:
        """Removes the half-written files of killed processes from a folder, those that nobody can
        be writing any more; returns how many. Where a write is atomic there are none."""
        removed = 0
        with suppress(_RemoteError, TypeError):  # TypeError: times without a zone
            if self._protocol in _ATOMIC or not self._pushes():
                return 0
            filesystem, folder = self._locate("tmp")
            for path in self._ask(filesystem, "find", folder):
                if datetime.now(UTC) - self._ask(filesystem, "modified", path) > older:
                    self._ask(filesystem, "rm_file", path)
                    removed += 1
        return removed

    def _upload(self, filesystem: Any, path: str, pieces: Iterable[bytes]) -> int:
        file = self._step(filesystem.open, path, "wb", block_size=_PART)
        size = 0
        try:
            for piece in pieces:
                self._step(file.write, piece)
                size += len(piece)
            self._step(file.close)
        except BaseException:
            with suppress(_RemoteError):
                self._step(_discard, file)
            raise
        return size

    @contextmanager
    def _pushing(self, name: str) -> Iterator[None]:
        try:
            yield
        except _RemoteError as error:
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

    def _missed(self, name: str, error: _RemoteError) -> None:
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

    def _failed(self, error: _RemoteError, pushing: bool = False) -> None:
        with self._lock:
            self.counts.errors += 1
            if pushing and error.denied:  # it can still be read
                self._denied = True
                self.problem = self.problem or f"{self._shown}: cannot be written: {error}"
                return
            self._in_a_row += 1
            if self._in_a_row >= PATIENCE and not self._given_up:
                self._given_up = True
                self.problem = f"{self._shown}: given up after {PATIENCE} errors in a row: {error}"

    def _usable(self) -> bool:
        if self._keys is None and not self._given_up:
            try:
                self.check()
            except PipelineError as error:
                self.problem = str(error)
                self._given_up = True
        return not self._given_up

    # Talking to it

    @property
    def _protocol(self) -> str:
        return _protocol_of(self.settings.url)

    @property
    def _shown(self) -> str:
        return _shown(self.settings.url)

    def _locate(self, name: str) -> tuple[Any, str]:
        """The filesystem, which is made at the first use in a process, and the path of a file."""
        with self._connecting:
            if self._connection is None:
                self._connection = self._step(_connect, self.settings)
            filesystem, root = self._connection
        return filesystem, f"{root}/{name}"

    def _size(self, filesystem: Any, path: str) -> int:
        info = self._ask(filesystem, "info", path)
        try:
            return int(info["size"])
        except (LookupError, TypeError, ValueError) as error:
            raise _RemoteError("errors", error) from error

    def _ask(self, filesystem: Any, method: str, *args: Any, **options: Any) -> Any:
        if filesystem.async_impl:  # which can then stop what takes too long
            options["timeout"] = self.settings.timeout
        return self._step(getattr(filesystem, method), *args, **options)

    def _step(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Calls it in a thread that may be left hanging: no process waits for it at its exit.
        Raises _RemoteError, a miss for FileNotFoundError and an error for all else."""
        done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                done.put((function(*args, **options), None))
            except BaseException as error:
                done.put((None, error))

        try:
            threading.Thread(target=run, name="pte-remote", daemon=True).start()
            result, error = done.get(timeout=self.settings.timeout)
        except RuntimeError as cannot_start:
            raise _RemoteError("errors", cannot_start) from cannot_start
        except queue.Empty:
            error = TimeoutError()
        if error is None:
            return result
        if isinstance(error, TimeoutError):
            error = TimeoutError(f"no answer within {self.settings.timeout:g} s")
        count = "misses" if isinstance(error, FileNotFoundError) else "errors"
        raise _RemoteError(count, error) from error


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


def _discard(file: Any) -> None:
    """Ends an upload without completing it, which closing the file, or forgetting it, would do."""
    try:
        file.closed = True
    except AttributeError:  # a plain file
        file.close()
    else:
        file.discard()


# Where it is


def _protocol_of(url: str) -> str:
    return url.partition("://")[0]


def _shown(url: str) -> str:
    return re.sub(r"//[^/]*@", "//", url)  # not the password


def _check_protocol(url: str) -> None:
    import fsspec

    protocol, separator, _ = url.partition("://")
    if not separator:
        raise PipelineError(
            f"remote '{url}': is no URL; such as file:///srv/cache or s3://bucket/prefix"
        )
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError:
        raise PipelineError(
            f"remote {_shown(url)}: {protocol}:// is not known; "
            "such as file://, s3://, gs://, abfs://, sftp://"
        ) from None
    except ImportError as error:
        needs = f"s3fs: {_INSTALL}" if protocol in ("s3", "s3a") else f"a package: {error}"
        raise PipelineError(f"remote {_shown(url)}: {protocol}:// needs {needs}") from error


def _connect(settings: RemoteSettings) -> tuple[Any, str]:
    """The filesystem and the path of the remote's root in it."""
    from fsspec.core import url_to_fs

    options = dict(settings.options)
    if _protocol_of(settings.url) in ("s3", "s3a"):
        limits = {
            "connect_timeout": settings.timeout,
            "read_timeout": settings.timeout,
            "retries": {"total_max_attempts": 1},
        }
        options["config_kwargs"] = {**limits, **options.get("config_kwargs", {})}
    filesystem, root = url_to_fs(settings.url, **{"skip_instance_cache": True, **options})
    return filesystem, root.rstrip("/")


# Whom to believe


@dataclass(frozen=True)
class _Keys:
    """Ed25519 keys; the trusted ones by the digest of their bytes."""

    signing: Any | None
    trusted: Mapping[Digest, Any]

    def sign(self, message: bytes) -> tuple[Digest | None, str | None]:
        if self.signing is None:
            return None, None
        signature = base64.b64encode(self.signing.sign(message)).decode("ascii")
        return _name_of(self.signing.public_key()), signature

    def accept(self, signer: Any, signature: Any, message: bytes) -> bool:
        if not self.trusted:
            return True
        from cryptography.exceptions import InvalidSignature

        try:
            self.trusted[signer].verify(base64.b64decode(signature, validate=True), message)
        except (InvalidSignature, LookupError, TypeError, ValueError):
            return False
        return True


def _name_of(public_key: Any) -> Digest:
    return digest.of_bytes(public_key.public_bytes_raw())


def _load_keys(settings: RemoteSettings) -> _Keys:
    if settings.signing_key is None and not settings.trusted_keys:
        return _Keys(None, {})
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
        from cryptography.hazmat.primitives.serialization import (
            load_pem_private_key,
            load_pem_public_key,
        )
    except ImportError as error:
        raise PipelineError(f"keys of the remote need cryptography: {_INSTALL}") from error

    signing = None
    public_keys = [
        _load(
            path,
            load_pem_public_key,
            ed25519.Ed25519PublicKey,
            "public key in PEM; openssl pkey -in key.pem -pubout -out key.pub",
        )
        for path in settings.trusted_keys
    ]
    if settings.signing_key is not None:
        signing = _load(
            settings.signing_key,
            lambda data: load_pem_private_key(data, password=None),
            ed25519.Ed25519PrivateKey,
            "private key in PEM, without a password; openssl genpkey -algorithm ed25519 "
            "-out key.pem",
        )
        public_keys.append(signing.public_key())
    return _Keys(signing, {_name_of(key): key for key in public_keys})


def _load(path: Path, parse: Callable[[bytes], Any], kind: type, wanted: str) -> Any:
    try:
        key = parse(path.read_bytes())
    except OSError as error:
        raise PipelineError(
            f"{path}: cannot be read ({error.strerror}); must be an Ed25519 {wanted}"
        ) from error
    except Exception:  # cryptography's, of many kinds
        key = None
    if not isinstance(key, kind):
        raise PipelineError(f"{path}: is no Ed25519 {wanted}")
    return key
