"""Errors of a remote in the terms of the tier, whichever filesystem of fsspec raised them."""

from __future__ import annotations

import errno

# What servers answer that may, or can, only be read.
_FORBIDDEN = 403
_READ_ONLY = (401, _FORBIDDEN, 405, 501)
_NOT_FOUND = 404
_NO_SUCH_RANGE = 416


class RemoteError(Exception):
    """The remote gave nothing; `count` is the field of `remote.Counts` that says why."""

    def __init__(self, count: str, cause: BaseException | None = None) -> None:
        super().__init__(count)
        self.count = count
        self.cause = cause

    def __str__(self) -> str:
        # Azure's errors go on with the id of the request and the answer as XML.
        text = str(self.cause).partition("\nRequestId:")[0]
        return " ".join(f"{type(self.cause).__name__}: {text}".split())[:500]

    @property
    def errno(self) -> int | None:
        return getattr(self.cause, "errno", None)

    @property
    def denied(self) -> bool:
        """Tell whether the remote may, or can, only be read."""
        only_read = isinstance(self.cause, PermissionError | NotImplementedError)
        status = _read_status(self.cause)
        return only_read or self.errno == errno.EROFS or status in _READ_ONLY

    @property
    def lacks_range(self) -> bool:
        """Tell whether a file has no bytes where some were asked for, as an empty one on S3 and
        Azure."""
        return self.errno == errno.EINVAL or _read_status(self.cause) == _NO_SUCH_RANGE


def translate_error(error: BaseException) -> RemoteError:
    """Return an error of a filesystem as one of the remote: a miss where something is not there."""
    cause = error.__cause__
    # fsspec's filesystem of http says so of a server that is down or fails, too.
    if isinstance(error, FileNotFoundError) and _is_of_http(cause):
        assert cause is not None
        error = cause
    absent = isinstance(error, FileNotFoundError) or _read_status(error) == _NOT_FOUND
    return RemoteError("misses" if absent else "errors", error)


def _is_of_http(error: BaseException | None) -> bool:
    return isinstance(error, TimeoutError) or type(error).__module__.startswith(
        "aiohttp."
    )


def _read_status(error: BaseException | None) -> int | None:
    """Return the status of an answer over HTTP, as aiohttp, httpx and Azure's library keep it, and
    as adlfs and webdav4 have it in the cause alone."""
    if error is None:
        return None
    if isinstance(error, OSError) and str(error).startswith("Forbidden: "):
        return _FORBIDDEN  # of which gcsfs keeps the text
    answer = getattr(error, "response", None)
    status: int | None = getattr(answer, "status_code", None)
    return status or getattr(error, "status", None) or _read_status(error.__cause__)
