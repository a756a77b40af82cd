"""Errors of a remote in the terms of the remote tier, whichever fsspec filesystem raised them."""

from __future__ import annotations

import errno

# Status codes of servers that allow, or support, only reading.
_FORBIDDEN = 403
_READ_ONLY = (401, _FORBIDDEN, 405, 501)
_NOT_FOUND = 404
_NO_SUCH_RANGE = 416


class RemoteError(Exception):
    """The remote returned nothing; `count` names the field of `RemoteCounts` that says why."""

    def __init__(self, count: str, cause: BaseException | None = None) -> None:
        super().__init__(count)
        self.count = count
        self.cause = cause

    def __str__(self) -> str:
        # After this, Azure's errors continue with the id of the request and the answer as XML.
        text = str(self.cause).partition("\nRequestId:")[0]
        return " ".join(f"{type(self.cause).__name__}: {text}".split())[:500]

    @property
    def errno(self) -> int | None:
        return getattr(self.cause, "errno", None)

    @property
    def denied(self) -> bool:
        """Return whether the remote allows, or supports, only reading."""
        only_read = isinstance(self.cause, PermissionError | NotImplementedError)
        status = _read_status(self.cause)
        return only_read or self.errno == errno.EROFS or status in _READ_ONLY

    @property
    def lacks_range(self) -> bool:
        """Return whether a file has no bytes in a requested range, such as an empty file.

        S3 and Azure report this.
        """
        return self.errno == errno.EINVAL or _read_status(self.cause) == _NO_SUCH_RANGE


def translate_error(error: BaseException) -> RemoteError:
    """Turn an error of a filesystem into a RemoteError: a miss if something isn't there."""
    cause = error.__cause__
    # fsspec's HTTP filesystem also raises this for a server that is down or fails.
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
    """Return the HTTP status in an error, as aiohttp, httpx and Azure's library store it.

    adlfs and webdav4 have it only in the cause.
    """
    if error is None:
        return None
    if isinstance(error, OSError) and str(error).startswith("Forbidden: "):
        return _FORBIDDEN  # gcsfs keeps only the text
    answer = getattr(error, "response", None)
    status: int | None = getattr(answer, "status_code", None)
    return status or getattr(error, "status", None) or _read_status(error.__cause__)
