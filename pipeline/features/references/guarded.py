"""Runs a function in a fork that may die.

Some kernels end their process on inputs that they don't support, without raising an exception.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

import torch

from pipeline.store.errors import log_traceback

_LABEL, _RESULT = b"L", b"R"
_HEADER = struct.Struct("<cQ")
_MOST_DEATHS = 16

Begin = Callable[[str], None]


class GuardError(Exception):
    """The fork raised an error, or died of something that it didn't announce; its log says more."""


def run_guarded(function: Callable[[Begin, Mapping[str, str]], bytes]) -> bytes:
    """Return the result of a function that runs in a fork, and runs again each time the fork dies.

    Args:
        function: receives a function to call with a label before anything that may end the process,
            and the labels that ended it so far, with the signal: it must skip these.

    Raises:
        GuardError: the function raised, died of something without a label, or died too often.
    """
    deaths: dict[str, str] = {}
    while True:
        label, result, status = _run_fork(function, deaths)
        if result is not None:
            return result
        # A fork that dies of something that it was told to skip would die of it forever.
        if status >= 0 or not label or label in deaths or len(deaths) >= _MOST_DEATHS:
            raise GuardError(f"its process ended (exit status {status})")
        deaths[label] = signal.Signals(-status).name


def _run_fork(
    function: Callable[[Begin, Mapping[str, str]], bytes], deaths: Mapping[str, str]
) -> tuple[str, bytes | None, int]:
    """Return the last label, the result or None, and the exit status of a fork."""
    # Otherwise the fork would write the buffered output again.
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reading)
        _run_child(function, deaths, writing)
    # The reader sees no end of the pipe while this end is open.
    os.close(writing)
    label, result = "", None
    with open(reading, "rb") as pipe:
        while header := pipe.read(_HEADER.size):
            kind, size = _HEADER.unpack(header)
            data = pipe.read(size)
            # A fork may die in the middle of a message.
            if kind == _RESULT and len(data) == size:
                result = data
            elif kind == _LABEL:
                label = data.decode()
    _, status = os.waitpid(child, 0)
    return label, result, os.waitstatus_to_exitcode(status)


def _run_child(
    function: Callable[[Begin, Mapping[str, str]], bytes],
    deaths: Mapping[str, str],
    writing: int,
) -> None:
    code = 1
    with suppress(BaseException):
        # The parent's threads don't exist in a fork, and waiting for them would take forever.
        torch.set_num_threads(1)
        with open(writing, "wb") as pipe:

            def send(kind: bytes, data: bytes) -> None:
                pipe.write(_HEADER.pack(kind, len(data)) + data)
                pipe.flush()

            try:
                send(
                    _RESULT,
                    function(lambda label: send(_LABEL, label.encode()), deaths),
                )
                code = 0
            except BaseException as problem:
                log_traceback(problem)
        sys.stdout.flush()
        sys.stderr.flush()
    # Not `sys.exit`: exit handlers belong to the parent.
    os._exit(code)
