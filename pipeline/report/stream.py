"""The event stream of a run: `build/events.jsonl`, with a line for each event as it happens.

`features/schemas/event_table.py` has the form of each line. A run begins a new file, unless another
run is in progress in this workspace; then it appends to that file, and the `run` field tells their
lines apart. Lines that can't be written are dropped: a build does not depend on its observers.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

from pipeline.report.events import NAMES
from pipeline.store.files import clear_place, make_folder

STREAM = "events.jsonl"
FORMAT = 1


class ActionNames(Protocol):
    """The names of an action, or of its event or task."""

    @property
    def kind(self) -> str: ...
    @property
    def package(self) -> str | None: ...
    @property
    def method(self) -> str | None: ...
    @property
    def model(self) -> str | None: ...


class EventStream:
    """The stream of one run.

    The first line opens the file, so that a command that runs no action doesn't touch it. Each line
    is written with one `write` call, so that no reader sees a part of it.
    """

    def __init__(self, folder: Path, **facts: Any) -> None:
        """Take the folder of the file, and the facts of the run for its first line."""
        self._folder = folder
        self._facts = facts
        self._run = os.urandom(6).hex()
        self._began = time.time()
        self._file: FileIO | None = None
        self._ended = False

    def write(self, event: str, of: ActionNames | None = None, **facts: Any) -> None:
        """Write a line: an event, the names of the action that it is `of`, and its facts."""
        if self._file is None and not self._ended:
            self._open()
        if of is not None:
            names = {name: getattr(of, name) for name in NAMES}
        else:
            names = {}
        self._write(event, time.time(), {**names, **facts})

    def close(self, **facts: Any) -> None:
        """Write the last line of the run."""
        self.write("run-ended", seconds=round(time.time() - self._began, 3), **facts)
        self._end()

    def _open(self) -> None:
        try:
            self._file = _open_shared(self._folder / STREAM, self._folder)
        except OSError:
            self._end()
        host = os.uname().nodename
        process = os.getpid()
        facts = {"format": FORMAT, "host": host, "process": process, **self._facts}
        self._write("run-started", self._began, facts)

    def _write(self, event: str, when: float, facts: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        line = {
            "event": event,
            "run": self._run,
            "time": round(when, 3),
            **facts,
        }
        try:
            self._file.write(json.dumps(line).encode() + b"\n")
        except OSError:  # a full disk, which the build reports
            self._end()

    def _end(self) -> None:
        self._ended = True
        if self._file is not None:
            self._file.close()
            self._file = None


def _open_shared(path: Path, root: Path) -> FileIO:
    """Open a file for appending: a new one, unless another process has it open in this way.

    Each process holds a shared lock. A process that gets the exclusive lock is therefore alone and
    replaces the file; this shows a follower that the old file has ended. Raises OSError.
    """
    make_folder(path.parent, root)
    while True:
        clear_place(path)
        file = FileIO(path, "ab")
        if _is_alone(file):
            path.unlink(missing_ok=True)
            file.close()
            file = FileIO(path, "ab")
        with suppress(OSError):  # the file system has no locks
            fcntl.flock(file, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.lstat()):
                return file
        file.close()  # another run replaced it in the meantime


def _is_alone(file: FileIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks
        return True
    return True
