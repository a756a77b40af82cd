"""Files at any address that fsspec reaches, with a time limit on every step."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from pipeline.features.remote.remote_error import RemoteError, translate_error
from pipeline.store.errors import PipelineError
from pipeline.store.files import TEMPORARY_PREFIX

_CHUNK = 1 << 22  # bytes per read
_PART = 1 << 23  # bytes per part of an upload; S3 requires at least 5 MiB

# Over HTTP, a server may ignore ranges and send as much as it likes, and a file can only be written
# by PUT.
_HTTP = {"http", "https"}
_WEBDAV = "webdav"
_LEAST_RATE = 1 << 20  # bytes per second expected of an upload in one step

# By protocol, the permission without which absent files can't be told from unreadable ones: S3 and
# Google's storage answer 403 to both.
_RIGHTS_TO_LIST = {
    "s3": "s3:ListBucket",
    "s3a": "s3:ListBucket",
    "gs": "storage.objects.list",
    "gcs": "storage.objects.list",
}
_PROBE = "readable"  # a file to test whether anything can be read

# Protocols for which a file appears only when its upload is complete, and a move is a copy.
_ATOMIC = {"abfs", "abfss", "az", "gcs", "gs", "hf", "oss", "s3", "s3a", *_HTTP}
# The pip extras for protocols that fsspec knows.
_EXTRAS = {
    **dict.fromkeys(("abfs", "abfss", "az"), "azure"),
    **dict.fromkeys(("gcs", "gs"), "gcs"),
    **dict.fromkeys(_HTTP, "http"),
    "hf": "hub",
    _WEBDAV: "webdav",
}


class RemoteFiles:
    """Files below a URL, by their names there.

    Every step has a time limit, so no method hangs. All methods raise RemoteError for whatever goes
    wrong at the remote.

    Args:
        options: options of the fsspec filesystem.
        timeout: seconds that a step may take: a query, or one piece of a transfer.
    """

    error = RemoteError  # for features that get files only through `moments`

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        self.shown = re.sub(r"//[^/]*@", "//", url)  # without a password
        self._url = url
        # The scheme of `webdav+https://host/folder` includes the transport.
        self._protocol, _, self._transport = url.partition("://")[0].partition("+")
        self._options = dict(options)
        self._timeout = timeout
        self._connecting = threading.Lock()
        self._connection: tuple[Any, str] | None = None

    def check(self) -> None:
        """Raise PipelineError for a URL that nothing installed can read."""
        import fsspec

        if "://" not in self._url:
            raise PipelineError(
                f"remote '{self._url}': is not a URL such as file:///srv/cache or "
                "s3://bucket/prefix"
            )
        where = f"remote {self.shown}: {self._protocol}://"
        try:
            fsspec.get_filesystem_class(self._protocol)
        except ValueError:
            schemes = (
                "such as file://, s3://, gs://, abfs://, https://, webdav+https://"
            )
            raise PipelineError(f"{where} is not a known scheme, {schemes}") from None
        except ImportError as error:
            needs = f"a package: {error}"
            if self._protocol in ("s3", "s3a"):
                needs = "s3fs: pip install 'pte-pipeline[remote]'"
            elif self._protocol in _EXTRAS:
                needs = f"pip install 'pte-pipeline[{_EXTRAS[self._protocol]}]'"
            raise PipelineError(f"{where} needs {needs}") from error

    def read(self, name: str, limit: int) -> Iterator[bytes]:
        """Yield the content of a file in pieces, exactly as the remote returns it.

        Raises RemoteError if there are more than `limit` bytes.

        Most files are one piece, so the first piece is requested right away, and the size only if
        there may be more.
        """
        if self._protocol in _HTTP:
            yield from self._stream(name, limit)
            return
        position, size = 0, None
        while size is None or position < size:
            end = position + _CHUNK
            try:
                chunk = self._ask("cat_file", name, start=position, end=end)
            except RemoteError as error:
                if error.lacks_range and self.size(name) == 0:
                    raise RemoteError("corrupt") from error
                raise
            if not isinstance(chunk, bytes):
                raise RemoteError("corrupt")
            position += len(chunk)
            if max(position, size or 0) > limit:
                raise RemoteError("corrupt")
            yield chunk
            if (
                len(chunk) != _CHUNK
            ):  # the last piece, or the whole file from a server without ranges
                return
            if size is None:
                size = self.size(name)

    def _stream(self, name: str, limit: int) -> Iterator[bytes]:
        """Yield a file in pieces as they arrive, with at most one of them in memory."""
        filesystem, root = self._connect()
        # Any `size` keeps fsspec from asking for it first.
        file = self._step(filesystem.open, f"{root}/{name}", "rb", block_size=0, size=1)
        position = 0
        try:
            while chunk := self._step(_read_chunk, file):
                position += len(chunk)
                if position > limit:
                    raise RemoteError("corrupt")
                yield chunk
        finally:
            with suppress(RemoteError):
                self._step(file.close)

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if there is no such file."""
        try:
            return int(self._ask("info", name)["size"])
        except RemoteError as error:
            if error.count != "misses":
                raise
            return None
        except (LookupError, TypeError, ValueError) as error:
            raise RemoteError("errors", error) from error

    def names(self) -> list[str]:
        """Return the names of all files, as they are now."""
        filesystem, root = self._connect()
        filesystem.invalidate_cache()  # others may have written since
        try:
            paths = self._step(filesystem.find, root)
        except RemoteError as error:
            if error.count != "misses":
                raise
            return []
        prefix = f"{root}/".lstrip("/")
        return sorted(path.lstrip("/").removeprefix(prefix) for path in paths)

    @property
    def right_to_list(self) -> str:
        return _RIGHTS_TO_LIST.get(self._protocol, "the permission to list")

    def probe(self, may_write: bool) -> bool:
        """Return whether the probe file can be read.

        If it can't and `may_write` is set, it is written and read again.
        """
        if self._probe():
            return True
        if may_write:
            with suppress(RemoteError):
                self.write(_PROBE, [b"1"])
        return may_write and self._probe()

    def _probe(self) -> bool:
        try:
            return b"".join(self.read(_PROBE, 1)) == b"1"
        except RemoteError:
            return False

    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        """Write a file and return its size in bytes.

        Readers see either the old content or the whole new one.
        """
        if self._protocol in _ATOMIC:
            return self._upload(name, pieces)
        temporary = f"tmp/{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(6)}"
        for path in (name, temporary):
            self._ask("makedirs", path.rpartition("/")[0], exist_ok=True)
        try:
            size = self._upload(temporary, pieces)
            filesystem, root = self._connect()
            move = filesystem.mv
            if (
                self._protocol == _WEBDAV
            ):  # its mv copies, so readers may see half of the file
                move = partial(filesystem.client.move, overwrite=True)
            self._step(move, f"{root}/{temporary}", f"{root}/{name}")
        except BaseException:
            with suppress(RemoteError):
                self._ask("rm_file", temporary)
            raise
        return size

    def sweep(self, older: timedelta = timedelta(days=1)) -> int:
        """Remove half-written files that nobody can still be writing; return how many.

        Killed processes leave them behind, but only if writes aren't atomic.
        """
        removed = 0
        with suppress(RemoteError, TypeError):  # TypeError: timestamps without a zone
            for path in () if self._protocol in _ATOMIC else self._ask("find", "tmp"):
                name = f"tmp/{path.rpartition('/')[2]}"
                if datetime.now(UTC) - self._ask("modified", name) > older:
                    self._ask("rm_file", name)
                    removed += 1
        return removed

    def _upload(self, name: str, pieces: Iterable[bytes]) -> int:
        filesystem, root = self._connect()
        if self._protocol in _HTTP:
            return self._put(name, pieces)
        file = self._step(filesystem.open, f"{root}/{name}", "wb", block_size=_PART)
        size = 0
        try:
            for piece in pieces:
                self._step(file.write, piece)
                size += len(piece)
            self._step(file.close, bytes_sent=size if self._protocol == _WEBDAV else 0)
        except BaseException:
            with suppress(RemoteError):
                self._step(_discard, file)
            raise
        return size

    def _put(self, name: str, pieces: Iterable[bytes]) -> int:
        """Write a file by PUT, once all of it is known to be valid."""
        filesystem, root = self._connect()
        with tempfile.NamedTemporaryFile(prefix=TEMPORARY_PREFIX) as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            size = file.tell()
            where = (file.name, f"{root}/{name}")
            self._step(filesystem.put_file, *where, method="put", bytes_sent=size)
        return size

    def _connect(self) -> tuple[Any, str]:
        """Return the filesystem, made on first use in a process, and the root's path in it."""
        with self._connecting:
            if self._connection is None:
                self._connection = self._step(self._make_filesystem)
            return self._connection

    def _make_filesystem(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        options = {"skip_instance_cache": True, **self._options}
        if self._protocol in ("s3", "s3a"):
            limits = {
                "connect_timeout": self._timeout,
                "read_timeout": self._timeout,
                "retries": {"total_max_attempts": 1},
            }
            options["config_kwargs"] = {**limits, **options.get("config_kwargs", {})}
        url = self._url
        if self._protocol == _WEBDAV:
            options = {"retry": False, "timeout": self._timeout, **options}
            if self._transport:
                host, _, folder = self._url.partition("://")[2].partition("/")
                options["base_url"] = f"{self._transport}://{host}"
                url = f"{_WEBDAV}://{folder}"
        if self._protocol == "hf":
            from huggingface_hub.utils import disable_progress_bars

            disable_progress_bars()  # each upload's bar would show the name of a temporary file
        filesystem, root = url_to_fs(url, **options)
        return filesystem, root.rstrip("/")

    def _ask(self, method: str, name: str, **options: Any) -> Any:
        filesystem, root = self._connect()
        if filesystem.async_impl:  # it can then stop a step that takes too long
            options["timeout"] = self._timeout
        return self._step(getattr(filesystem, method), f"{root}/{name}", **options)

    def _step(
        self,
        function: Callable[..., Any],
        *args: Any,
        bytes_sent: int = 0,
        **options: Any,
    ) -> Any:
        """Call a function in a thread that may be left hanging: no process waits for it at exit.

        Raises RemoteError: a miss for FileNotFoundError, and an error for anything else.

        Args:
            bytes_sent: bytes sent in this one step, which extend its time limit.
        """
        timeout = self._timeout + bytes_sent / _LEAST_RATE
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(function(*args, **options))
            except BaseException as error:
                future.set_exception(error)

        try:
            threading.Thread(target=run, name="pte-remote", daemon=True).start()
            error = future.exception(timeout)
        except (
            RuntimeError,
            TimeoutError,
        ) as problem:  # no thread can start, or it hangs
            error = problem
        if error is None:
            return future.result()
        if isinstance(error, TimeoutError):
            error = TimeoutError(f"no answer within {round(timeout, 1):g} s")
        raise translate_error(error) from error


def _read_chunk(file: Any) -> bytes:
    """Read a whole chunk, or the remainder, so that one step transfers at most one chunk."""
    chunk = bytearray()
    while len(chunk) < _CHUNK and (piece := file.read(_CHUNK - len(chunk))):
        chunk += piece
    return bytes(chunk)


def _discard(file: Any) -> None:
    """End an upload without completing it; closing or dropping the file would complete it."""
    try:
        file.closed = True
    except AttributeError:  # a plain file
        file.close()
    else:
        file.discard()
