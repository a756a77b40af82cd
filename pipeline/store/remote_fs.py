"""Files on whatever fsspec reaches, never waited for longer than a limit of time."""

from __future__ import annotations

import errno
import os
import queue
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.store.errors import PipelineError
from pipeline.store.files import TEMPORARY_PREFIX
from pipeline.store.signing import INSTALL

_PIECE = 1 << 22  # bytes read in a step
_PART = 1 << 23  # bytes of a part of an upload; S3 wants at least 5 MiB

# Where a file appears when its upload is complete, and a move is a copy.
_ATOMIC = {"abfs", "abfss", "az", "gcs", "gs", "oss", "s3", "s3a"}


class RemoteError(Exception):
    """Why the remote gave nothing; `count` is the one of `remote.Counts` that it goes to."""

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


class RemoteFiles:
    """Files below a URL, by their path there. Every step has a limit of time, so none of the
    methods hangs; all of them raise RemoteError for whatever goes wrong there.

    Args:
        options: of the fsspec filesystem.
        timeout: seconds that a step may take: a question, or one piece of a transfer.
    """

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        self._url = url
        self._options = options
        self._timeout = timeout
        self.forget_connection()

    def forget_connection(self) -> None:
        """After a fork: neither a lock held by another thread nor fsspec's event loop outlives
        it."""
        self._connecting = threading.Lock()
        self._connection: tuple[Any, str] | None = None

    @property
    def shown(self) -> str:
        """The URL without a password."""
        return _shown(self._url)

    @property
    def _atomic(self) -> bool:
        return _protocol_of(self._url) in _ATOMIC

    def check(self) -> None:
        """Raises PipelineError for a URL that nothing here can read."""
        _check_protocol(self._url)

    def read(self, name: str, limit: int) -> Iterator[bytes]:
        """What the remote says the file holds, in pieces; more than `limit` bytes are refused. Most
        files are one: the first piece is asked for outright, and the size only when there may be
        more."""
        filesystem, path = self._locate(name)
        position, size = 0, None
        while size is None or position < size:
            end = position + _PIECE
            try:
                piece = self._ask(filesystem, "cat_file", path, start=position, end=end)
            except RemoteError as error:
                # Of an empty file, S3 has no range to give.
                if error.errno == errno.EINVAL and self._size_of(filesystem, path) == 0:
                    raise RemoteError("corrupt") from error
                raise
            if not isinstance(piece, bytes):
                raise RemoteError("corrupt")
            position += len(piece)
            if max(position, size or 0) > limit:
                raise RemoteError("corrupt")
            yield piece
            if len(piece) != _PIECE:  # the last, or all of it from a server without ranges
                return
            if size is None:
                size = self._size_of(filesystem, path)

    def size(self, name: str) -> int:
        """In bytes."""
        return self._size_of(*self._locate(name))

    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        """Under its name is the old file or the whole new one. Returns the size in bytes."""
        filesystem, path = self._locate(name)
        if self._atomic:
            return self._upload(filesystem, path, pieces)
        temporary = self._locate(f"tmp/{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(6)}")
        for folder in (path, temporary[1]):
            self._ask(filesystem, "makedirs", folder.rpartition("/")[0], exist_ok=True)
        try:
            size = self._upload(*temporary, pieces)
            self._step(filesystem.mv, temporary[1], path)
        except BaseException:
            with suppress(RemoteError):
                self._ask(filesystem, "rm_file", temporary[1])
            raise
        return size

    def sweep(self, older: timedelta = timedelta(days=1)) -> int:
        """Removes the half-written files of killed processes from a folder, those that nobody can
        be writing any more; returns how many. Where a write is atomic there are none."""
        removed = 0
        with suppress(RemoteError, TypeError):  # TypeError: times without a zone
            if self._atomic:
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
            with suppress(RemoteError):
                self._step(_discard, file)
            raise
        return size

    def _locate(self, name: str) -> tuple[Any, str]:
        """The filesystem, which is made at the first use in a process, and the path of a file."""
        with self._connecting:
            if self._connection is None:
                self._connection = self._step(_connect, self._url, self._options, self._timeout)
            filesystem, root = self._connection
        return filesystem, f"{root}/{name}"

    def _size_of(self, filesystem: Any, path: str) -> int:
        info = self._ask(filesystem, "info", path)
        try:
            return int(info["size"])
        except (LookupError, TypeError, ValueError) as error:
            raise RemoteError("errors", error) from error

    def _ask(self, filesystem: Any, method: str, *args: Any, **options: Any) -> Any:
        if filesystem.async_impl:  # which can then stop what takes too long
            options["timeout"] = self._timeout
        return self._step(getattr(filesystem, method), *args, **options)

    def _step(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Calls it in a thread that may be left hanging: no process waits for it at its exit.
        Raises RemoteError, a miss for FileNotFoundError and an error for all else."""
        done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                done.put((function(*args, **options), None))
            except BaseException as error:
                done.put((None, error))

        try:
            threading.Thread(target=run, name="pte-remote", daemon=True).start()
            result, error = done.get(timeout=self._timeout)
        except RuntimeError as cannot_start:
            raise RemoteError("errors", cannot_start) from cannot_start
        except queue.Empty:
            error = TimeoutError()
        if error is None:
            return result
        if isinstance(error, TimeoutError):
            error = TimeoutError(f"no answer within {self._timeout:g} s")
        count = "misses" if isinstance(error, FileNotFoundError) else "errors"
        raise RemoteError(count, error) from error


def _discard(file: Any) -> None:
    """Ends an upload without completing it, which closing the file, or forgetting it, would do."""
    try:
        file.closed = True
    except AttributeError:  # a plain file
        file.close()
    else:
        file.discard()


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
        needs = f"s3fs: {INSTALL}" if protocol in ("s3", "s3a") else f"a package: {error}"
        raise PipelineError(f"remote {_shown(url)}: {protocol}:// needs {needs}") from error


def _connect(url: str, options: Mapping[str, Any], timeout: float) -> tuple[Any, str]:
    """The filesystem and the path of the remote's root in it."""
    from fsspec.core import url_to_fs

    options = dict(options)
    if _protocol_of(url) in ("s3", "s3a"):
        limits = {
            "connect_timeout": timeout,
            "read_timeout": timeout,
            "retries": {"total_max_attempts": 1},
        }
        options["config_kwargs"] = {**limits, **options.get("config_kwargs", {})}
    filesystem, root = url_to_fs(url, **{"skip_instance_cache": True, **options})
    return filesystem, root.rstrip("/")
