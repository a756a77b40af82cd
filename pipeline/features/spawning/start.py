"""Starts a function in a fresh Python process.

The function is pickled; its open files and sockets are passed by descriptor. Nothing that was
loaded from files of the workspace is sent: only functions of this package, and the values that they
hold.
"""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from multiprocessing.util import spawnv_passfds  # type: ignore[attr-defined]
from tempfile import TemporaryFile
from typing import Any, BinaryIO, NoReturn

from cloudpickle import Pickler

from pipeline.run.isolated import ForkWatch

# Look for modules where this process does, and import nothing before that.
_CODE = """\
import sys
sys.path[:] = sys.argv[2:]
from pte_pipeline.name_conflict import claim_pipeline
claim_pipeline()
from pipeline.features.spawning.child import run_sent
run_sent(int(sys.argv[1]))
"""


def start_process(
    run: Callable[[], NoReturn],
    surroundings: Callable[[], AbstractContextManager[object]],
) -> int:
    """Start a process that calls a function within a context, and return its ID.

    The process inherits the environment, working folder, standard streams and `sys.path` of this
    one, and lives until the function ends it. Raises TypeError if something can't be pickled.
    """
    with TemporaryFile() as file:
        pickler = _CallPickler(file)
        pickler.dump((run, surroundings, ForkWatch.scratch))
        file.seek(0)
        descriptors = {*pickler.descriptors, file.fileno()}
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        words = [sys.executable, *flags, "-c", _CODE, str(file.fileno()), *sys.path]
        arguments = [os.fsencode(word) for word in words]
        return int(spawnv_passfds(arguments[0], arguments, sorted(descriptors)))


class _CallPickler(Pickler):  # type: ignore[misc]
    """Pickles a call, and collects the `descriptors` of the files and sockets in it."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.descriptors: set[int] = set()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, socket.socket):
            return socket.socket, (-1, -1, -1, self._pass(value))
        if isinstance(value, Connection):
            return Connection, (self._pass(value),)
        if isinstance(value, io.IOBase):
            file: Any = value
            return os.fdopen, (self._pass(file), file.mode)
        return super().reducer_override(value)

    def _pass(self, value: Any) -> int:
        """Return the descriptor of a file or socket, and mark it to be passed to the process."""
        descriptor = int(value.fileno())
        self.descriptors.add(descriptor)
        return descriptor
