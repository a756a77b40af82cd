"""The log of an action: the output of its process and all child processes, up to a size limit."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TextIO

from pipeline.store.files import clear_place

MOST = 64 << 20  # bytes
_SECONDS = 0.5  # between two checks of the log's size
_CUT = b"\n... the middle of this log is left out: it is longer than %d MB ...\n"


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Redirect standard output and error, including output from native code, to a file.

    Works on the file descriptors. The middle of the log is dropped when it exceeds `MOST`.
    """
    clear_place(path)
    log = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    saved = [os.dup(fd) for fd in (1, 2)]
    try:
        for fd in (1, 2):
            os.dup2(log, fd)
        with _repeating(partial(_bound, log)):
            yield
    finally:
        _flush(sys.stdout, 1)
        _flush(sys.stderr, 2)
        for fd, original in zip((1, 2), saved, strict=True):
            os.dup2(original, fd)
            os.close(original)
        _bound(log)
        os.close(log)


def _flush(stream: TextIO, fd: int) -> None:
    """Flush a stream into the log, discarding the rest if the disk is full.

    Text left in the stream would later appear on the terminal.
    """
    try:
        stream.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, fd)
        os.close(null)
        stream.flush()


@contextmanager
def _repeating(call: partial[None]) -> Iterator[None]:
    """Call a function repeatedly in a thread, which forks of this process don't inherit."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(_SECONDS):
            call()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _bound(log: int) -> None:
    """Trim a log that exceeds `MOST` to the first half and the last quarter of that size."""
    size = os.fstat(log).st_size
    if size > MOST:
        last = os.pread(log, MOST // 4, size - MOST // 4)
        os.ftruncate(log, MOST // 2)
        os.write(log, _CUT % (MOST >> 20) + last)
