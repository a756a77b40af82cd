"""Errors of filesystems in the terms of the remote tier."""

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
        (TimeoutError("a"), "errors", False),
    ],
)
def test_what_is_absent_and_what_is_denied(error, count, denied):
    translated = translate_error(error)
    assert (translated.count, translated.denied) == (count, denied)
    wrapped = RuntimeError("Failed to upload block")
    wrapped.__cause__ = error
    is_answer = isinstance(error, ClientResponseError)
    assert translate_error(wrapped).cause is (error if is_answer else wrapped)


def test_a_range_of_an_empty_file():
    assert translate_error(answered(416)).lacks_range
    assert translate_error(OSError(errno.EINVAL, "a")).lacks_range
    assert not translate_error(answered(404)).lacks_range


def test_the_answer_of_a_server_is_left_out():
    text = "no such container\nRequestId:1\nContent: <?xml version='1.0'?>"
    assert str(translate_error(ValueError(text))) == "ValueError: no such container"
