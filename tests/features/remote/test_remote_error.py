"""Errors of file systems, translated into those of the remote."""

import errno

import pytest
from aiohttp import ClientResponseError

from pipeline.features.remote.remote_error import translate_error


def answered(status):
    return ClientResponseError(None, (), status=status, message="no")


@pytest.mark.parametrize(
    ("error", "count", "denied"),
    [
        (FileNotFoundError("a"), "misses", False),
        (answered(404), "misses", False),
        (answered(403), "errors", True),
        (answered(500), "errors", False),
        (PermissionError("a"), "errors", True),
        (OSError(errno.EROFS, "a"), "errors", True),
        (OSError("Forbidden: a"), "errors", True),
        (TimeoutError("a"), "errors", False),
    ],
)
def test_what_is_absent_and_what_is_denied(error, count, denied):
    translated = translate_error(error)
    assert (translated.count, translated.denied) == (count, denied)


@pytest.mark.parametrize("status", [403, 404])
def test_what_refused_an_upload_is_in_the_cause(status):
    wrapped = RuntimeError("Failed to upload block: no")
    wrapped.__cause__ = answered(status)
    translated = translate_error(wrapped)
    assert str(translated) == "RuntimeError: Failed to upload block: no"
    assert (translated.count == "misses", translated.denied) == (status == 404, status == 403)


@pytest.mark.parametrize("status", [404, 500])
def test_a_server_that_fails_does_not_lack_a_file(status):
    error = FileNotFoundError("https://host/packages.json")
    error.__cause__ = answered(status)
    assert translate_error(error).count == ("misses" if status == 404 else "errors")
    error.__cause__ = TimeoutError("slow")
    assert translate_error(error).count == "errors"


def test_a_range_of_an_empty_file():
    assert translate_error(answered(416)).lacks_range
    assert translate_error(OSError(errno.EINVAL, "a")).lacks_range
    assert not translate_error(answered(404)).lacks_range


def test_the_answer_of_a_server_is_left_out():
    text = "no such container\nRequestId:1\nContent: <?xml version='1.0'?>"
    assert str(translate_error(ValueError(text))) == "ValueError: no such container"
