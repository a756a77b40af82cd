"""The process of a runner, which opens one package, then loads and calls its methods."""

from __future__ import annotations

import signal
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory, TemporaryFile
from typing import Any

from pipeline.devices.interface import PackageFiles
from pipeline.devices.runtime_log import ERRORS, explain_failure
from pipeline.features.native.board import Board, find_signal
from pipeline.features.native.wire import AnswerReader, put_text, put_value
from pipeline.store.errors import DeviceError

_VERSION = 2
_LOAD, _CALL, _MEMORY, _DROP, _OPERATORS, _TRACE = range(1, 7)
_MOST_READ = 1 << 20
_TAIL = 4096  # the bytes at the end of stderr that are searched for a reason
_SENT = "<IIQ"
TIMES, VALUES = 1, 2  # what a trace records
# The memory figures that a runner returns, in bytes, in this order.
MEMORY = ("at_start", "peak", "planned", "method", "temporary")


class RunnerProcess:
    """A runner that has opened a package.

    Attributes:
        command: the command of the runner, without the package's files.
        open_ms: the time that the runtime took to open the files, in milliseconds.
    """

    def __init__(
        self,
        command: Sequence[str],
        files: PackageFiles,
        seconds: float,
        board: Board | None = None,
    ) -> None:
        """Start a runner, which opens a package. Raises DeviceError if either fails.

        Args:
            command: the command of the runner; not used on a board, which makes its own.
            seconds: the time limit of each answer; a process that exceeds it is killed.
            board: the board to run on, or None for this machine.
        """
        self.command = list(command)
        self._name = files.name
        self._seconds = seconds
        self._folder = TemporaryDirectory(prefix="pte-runner-")
        self._stderr = TemporaryFile()  # noqa: SIM115 - open as long as the process
        self._groups = 0
        self._timed_out = False
        paths = [
            self._place(number, file)
            for number, file in enumerate((files.pte, *files.ptds))
        ]
        self._board = board
        self._number = 0
        if board:
            paths = [board.place(Path(path)) for path in paths]
            command, self._number = board.make_command(paths)
        else:
            command = [*command, *paths]
        self._process = self._start(command)
        self._reader = AnswerReader(self._read)
        with self._exchange("", "does not open"):
            version = self._reader.number()
            if version != _VERSION:
                raise ValueError(f"the runner speaks version {version}, not {_VERSION}")
            self._check("", "does not open")
            self.open_ms = self._reader.number("Q") / 1e6

    def _place(self, number: int, file: Path | bytes) -> str:
        """Return the path of a file, after writing it to disk if it is only in memory."""
        if isinstance(file, Path):
            return str(file.absolute())
        suffix = ".ptd" if number else ".pte"
        with NamedTemporaryFile(
            dir=self._folder.name, suffix=suffix, delete=False
        ) as copy:
            copy.write(file)
        return copy.name

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                bufsize=0,
            )
        except OSError as error:
            reason = f"{command[0]} does not start: {error.strerror}"
            raise DeviceError(f"{self._name}: ", reason) from error

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def load(self, methods: Sequence[str], tracing: int = 0) -> tuple[int, float]:
        """Load a group of methods in their initial state; they share the package's common state.

        Args:
            tracing: what calls record: 0 for nothing, `TIMES` of operators, or `VALUES` too.

        Returns:
            The number of the group, which `call` takes, and the time to load it in milliseconds.

        Raises:
            DeviceError: a method doesn't load, or the process ended.
        """
        self._groups += 1
        group = self._groups
        names = b"".join(map(put_text, methods))
        subject = methods[0] if len(methods) == 1 else ""
        with self._exchange(subject, "does not load"):
            self._send(
                struct.pack("<IIII", _LOAD, group, tracing, len(methods)) + names
            )
            error = self._read_error(subject, "does not load")
            nanoseconds = self._reader.number("Q")
        if error is not None:
            raise error
        return group, nanoseconds / 1e6

    def call(
        self,
        group: int,
        method: str,
        values: Sequence[Any],
        orders: Sequence[tuple[int, ...] | None],
        repeats: int = 1,
        warm_up: int = 0,
        pause: float = 0.0,
    ) -> tuple[list[Any], list[float], int]:
        """Call a loaded method.

        Args:
            orders: for each input, the order of its dimensions in memory.
            repeats: the number of calls after the `warm_up` calls; state carries over between
                calls.
            pause: milliseconds of rest before each call after the warm-up.

        Returns:
            The outputs of the first call after the warm-up, the milliseconds of each call after it,
            and how many of these returned other bytes than the first.

        Raises:
            DeviceError: the runtime refuses the call, or the process ended.
        """
        with self._exchange(method, "fails"):
            parts = [struct.pack("<II", _CALL, group), put_text(method)]
            parts.append(
                struct.pack("<IIII", warm_up, repeats, round(pause * 1e3), len(values))
            )
            for place, value in enumerate(values):
                order = orders[place] if place < len(orders) else None
                parts.append(put_value(value, order))
            self._send(b"".join(parts))
            error = self._read_error(method, "fails")
            outputs = self._reader.values()
            nanoseconds = self._reader.numbers(self._reader.number())
            differing = self._reader.number()
        if error is not None:
            raise error
        return outputs, [each_call / 1e6 for each_call in nanoseconds], differing

    def measure_memory(self, group: int) -> Mapping[str, int]:
        """Return the bytes of memory by kind (`MEMORY`). Raises DeviceError if the runner fails."""
        with self._exchange("", "fails"):
            self._send(struct.pack("<II", _MEMORY, group))
            self._check("", "fails")
            return dict(zip(MEMORY, self._reader.numbers(len(MEMORY)), strict=True))

    def list_operators(self) -> list[str]:
        """Return the operators that the runtime has registered, such as `aten::add.out`.

        Raises DeviceError if the runner fails.
        """
        with self._exchange("", "fails"):
            self._send(struct.pack("<I", _OPERATORS))
            self._check("", "fails")
            return self._reader.texts()

    def take_trace(self, group: int) -> tuple[bytes, bytes]:
        """Return the ETDump of traced methods, and the bytes of the values that it refers to.

        The methods were loaded with `tracing`. A trace can be taken once. Raises DeviceError if the
        runner fails.
        """
        with self._exchange("", "fails"):
            self._send(struct.pack("<II", _TRACE, group))
            self._check("", "fails")
            return self._reader.content(), self._reader.content()

    def drop(self, group: int) -> None:
        """Release a group of loaded methods."""
        with suppress(DeviceError), self._exchange("", "fails"):
            self._send(struct.pack("<II", _DROP, group))
            self._check("", "fails")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        if self._board and self._timed_out:
            self._board.kill_runner(self._number)
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._folder.cleanup()

    def _check(self, method: str, failure: str) -> None:
        error = self._read_error(method, failure)
        if error is not None:
            raise error

    def _read_error(self, method: str, failure: str) -> DeviceError | None:
        """Read the status of a request; return its error, or None if it succeeded."""
        code = self._reader.number()
        log = self._reader.texts()
        if not code:
            return None
        explanations, instruction = explain_failure(log)
        message = f"{ERRORS.get(code, 'error')} (0x{code:x})"
        reason = "; ".join([f"{failure}: {message}", *explanations])
        return DeviceError(
            self._subject(method), reason, code=code, instruction=instruction
        )

    def _subject(self, method: str) -> str:
        return f"{self._name}: " + (f"method '{method}' " if method else "")

    @contextmanager
    def _exchange(self, method: str, failure: str) -> Iterator[None]:
        """Within the context, limit the time of a request and its answer.

        Raises DeviceError if the process ends, hangs or sends an invalid answer.
        """
        timer = threading.Timer(self._seconds, self._end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except DeviceError:
            raise
        except (OSError, EOFError) as error:
            reason = f"{failure}: {self._describe_end()}"
            raise DeviceError(self._subject(method), reason) from error
        except ValueError as error:
            raise DeviceError(self._subject(method), f"{failure}: {error}") from error
        finally:
            timer.cancel()

    def _end(self) -> None:
        self._timed_out = True
        self._process.kill()

    def _describe_end(self) -> str:
        if self._timed_out:
            return f"no answer within {self._seconds:g} s (validate.timeout)"
        status = self._process.wait()
        self._stderr.seek(0, 2)
        self._stderr.seek(max(0, self._stderr.tell() - _TAIL))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        if self._board:
            reason = self._board.explain(status, lines)
            if reason:
                return reason
            status = find_signal(status)
        how = f"exit status {status}"
        if status < 0:
            with suppress(ValueError):
                how = signal.Signals(-status).name
        last = f": {lines[-1]}" if lines else ""
        return f"the runner ended ({how}){last}"

    def _send(self, content: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(content)
        while view:
            view = view[self._process.stdin.write(view) :]

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        parts = []
        while size:
            part = self._process.stdout.read(min(size, _MOST_READ))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
