"""Runs a function in a fork that may die: some kernels end their process for inputs that they do
not take, which no exception says."""

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
    """The fork raised, or died of what it did not announce. The log has the traceback."""


def run_guarded(function: Callable[[Begin, Mapping[str, str]], bytes]) -> bytes:
    """Return what a function returns, which runs in a fork, and again after each death of that.

    Args:
        function: is given a function to call with a label before each thing that may end its
            process, and the labels of those that did, with the signal: it leaves these out.

    Raises:
        GuardError: it raised, or died of something without a label or of too many.
    """
    deaths: dict[str, str] = {}
    while True:
        label, result, status = _run_fork(function, deaths)
        if result is not None:
            return result
        # A fork that dies of something it was told to skip would die of it forever.
        if status >= 0 or not label or label in deaths or len(deaths) >= _MOST_DEATHS:
            raise GuardError(f"its process ended (exit status {status})")
        deaths[label] = signal.Signals(-status).name


def _run_fork(
    function: Callable[[Begin, Mapping[str, str]], bytes], deaths: Mapping[str, str]
) -> tuple[str, bytes | None, int]:
    """Return the last label, the result or None, and the exit status of a fork."""
    # What is in the buffers would be written by the fork as well.
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reading)
        _run_child(function, deaths, writing)
    # As long as this end is open, the pipe has no end for the reader.
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
        # The threads of the fork's parent are not there, and whoever waits for them waits for ever.
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
    # Not `sys.exit`: handlers at exit are those of the parent.
    os._exit(code)
