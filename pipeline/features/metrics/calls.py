"""Calls of methods by a metric, whose process asks the validating process to make them.

A metric is workspace code, so its process has neither the package nor a runtime, and its messages
are read as plain data.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.program.containers import make_plain
from pipeline.program.inputs import InputSet, load_inputs, save_inputs
from pipeline.run.isolated import ForkWatch
from pipeline.store.errors import PipelineError, did_you_mean
from pipeline.validate.budget import Budget

Run = Callable[[str, Sequence[Any], Mapping[str, Any]], Any]
_LENGTH = 8  # bytes of the length that precedes each message
_LEAST_SECONDS = 0.1
_RESET = b""  # has no answer; any other message is a call
_GAVE, _FAILED = b"+", b"-"  # the first byte of an answer


class CallServer(ForkWatch):
    """The methods of a package or of its source; `attend` makes the calls that a fork asks for.

    `attend` raises PipelineError if the fork asks for no call within the timeout, and
    OutOfTimeError if the budget is spent.

    Attributes:
        methods: the names of the methods.
        called: in the fork, the names of the methods that it called.
    """

    def __init__(
        self,
        methods: Sequence[str],
        run: Run,
        reset: Callable[[], None] | None,
        timeout: float,
        budget: Budget | None = None,
    ) -> None:
        """Serve the methods of a package or of its source.

        Args:
            methods: the names of the methods.
            run: runs a method, given its name, arguments and keyword arguments.
            reset: restores the initial state; None if there is no state.
            timeout: the maximum number of seconds between two calls.
            budget: the seconds for all calls together; by default unlimited.
        """
        super().__init__()
        self.methods = tuple(methods)
        self.called: set[str] = set()
        self._run = run
        self._reset = reset
        self._timeout = timeout
        self._budget = budget or Budget()
        self._line: socket.socket | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, without the functions that only this one calls."""
        has_state = self._reset is not None
        return {
            **vars(self),
            "_run": None,
            "_reset": _do_nothing if has_state else None,
        }

    def begin(self, line: socket.socket) -> None:
        self._line = line

    def attend(self, child: int, line: socket.socket) -> None:
        # A timeout of 0 would make the socket non-blocking, and its first read would fail.
        line.settimeout(min(self._timeout, max(self._budget.left, _LEAST_SECONDS)))
        try:
            for message in _receive(line):
                self._budget.check()
                if message == _RESET and self._reset is not None:
                    self._reset()
                elif message != _RESET:
                    _send(line, self._answer(message))
        except TimeoutError:
            self._budget.check()
            raise PipelineError(
                f"called no method for {self._timeout:g} s (validate.timeout)"
            ) from None
        except (BrokenPipeError, ConnectionResetError):
            return  # the fork has ended; `run_isolated` reports why

    def begin_sample(self) -> None:
        """Ask, in the fork, for the initial state to be restored."""
        if self._reset is not None:
            _send(self._find_line(), _RESET)

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a method from the fork and return its outputs. Raises PipelineError if it fails."""
        if method not in self.methods:
            remedy = did_you_mean(method, self.methods)
            raise PipelineError(f"no method '{method}'; {remedy}")
        self.called.add(method)
        line = self._find_line()
        # The other process doesn't know the workspace's own container classes.
        plain_args = tuple(make_plain(args))
        inputs = InputSet(plain_args, make_plain(dict(kwargs)), method)
        _send(line, save_inputs([inputs]))
        answer = next(_receive(line), None)
        if answer is None:
            raise PipelineError("the process that runs the package has ended")
        if answer[:1] == _FAILED:
            raise PipelineError(answer[1:].decode())
        (outputs,) = load_inputs(answer[1:])
        return outputs.args[0]

    def _find_line(self) -> socket.socket:
        assert self._line is not None, "there are calls in a fork alone"
        return self._line

    def _answer(self, message: bytes) -> bytes:
        try:
            (inputs,) = load_inputs(message)
            outputs = self._run(inputs.origin, inputs.args, inputs.kwargs)
            return _GAVE + save_inputs([InputSet((make_plain(outputs),))])
        except Exception as error:  # whatever an operator raises for these inputs
            return _FAILED + f"{_describe(error)}".encode()


class PackageMethods:
    """A package as a metric sees it: `package.encode(x)` or `package["encode"](x)` calls a method.

    Arguments and outputs have the same structure as the source's.
    """

    def __init__(self, calls: CallServer) -> None:
        self._calls = calls

    def __getitem__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._calls.call(name, args, kwargs)

        return call

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # Copying and pickling look up special methods before `_calls` is set, which would recurse.
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls.methods)


def _do_nothing() -> None:
    """Stand in for a function that only the other process has."""


def _describe(error: Exception) -> str:
    if isinstance(error, PipelineError):
        return "; ".join(error.lines)
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _send(line: socket.socket, message: bytes) -> None:
    line.sendall(len(message).to_bytes(_LENGTH, "little") + message)


def _receive(line: socket.socket) -> Iterator[bytes]:
    """Yield messages as they arrive, until the other end closes."""
    while header := _receive_bytes(line, _LENGTH):
        yield _receive_bytes(line, int.from_bytes(header, "little"))


def _receive_bytes(line: socket.socket, number: int) -> bytes:
    """Return exactly `number` bytes, or b"" if the other end closes first."""
    received = bytearray()
    while len(received) < number:
        # `recv` allocates as much as it is asked for, and workspace code sent the length.
        part = line.recv(min(number - len(received), 1 << 20))
        if not part:
            return b""
        received += part
    return bytes(received)
