"""Runs a function in a fork of this process, which is warmed up and has one thread.

If forks are not safe, a process that a feature starts takes the fork's place. Anything that user
code does to its process, torch's defaults or modules ends with the fork. Results come back as JSON,
errors as a class and a message; the log is shared with this process.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import takewhile
from typing import Any, BinaryIO, ClassVar, NoReturn

from pipeline.moments import call_all
from pipeline.run.stages import Stages, peak_of
from pipeline.store.errors import PipelineError, describe_error, log_traceback

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37
_SEED = 0
_BEGIN = f"{__name__}.begin"  # modules after this entry of `sys.modules` were imported in the fork


class ChildError(PipelineError):
    """User code failed in its process, whose log has the traceback.

    Attributes:
        signal: the signal that killed the process, or 0.
    """

    def __init__(self, text: str, by_signal: int = 0) -> None:
        super().__init__(*text.split("\n"))
        self.signal = by_signal


class ForkWatch:
    """Records what a fork does: the files of the modules that it imports, keyed by module name.

    Subclasses in features may record more: see `moments.Feature.watch_exporter`.

    Attributes:
        scratch: this worker's folder for temporary files, empty when a fork begins; "" in any
            process that isn't a worker.
    """

    scratch: ClassVar[str] = ""

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}

    def prepare(self) -> None:
        """Prepare in this process, before it forks."""

    def begin(self, line: socket.socket) -> None:
        """Start recording in the fork, before the function runs; `line` leads to `attend`."""

    def attend(self, child: int, line: socket.socket) -> None:
        """Answer the fork's requests in this process until there are no more.

        Args:
            child: process ID of the fork.
            line: connected to `begin`.
        """

    def to_json(self) -> dict[str, Any]:
        """Return the facts recorded in the fork."""
        return {"modules": self.modules}

    def add(self, facts: Mapping[str, Any]) -> None:
        """Add the facts that the fork recorded, as its `to_json` returned them."""
        self.modules |= facts["modules"]


def run_isolated(
    function: Callable[[], Any],
    watch: ForkWatch | None = None,
    stages: Stages | None = None,
    describe: Callable[[BaseException], str] = describe_error,
    surroundings: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Any:
    """Run a function in a fork of this process and return its result, a JSON value.

    The fork starts with fixed random seeds, whatever this process did before. Processes that it
    leaves behind are killed.

    Args:
        watch: records what the fork does.
        stages: receives the fork's stages and its peak memory.
        describe: formats the error that the function raised.
        surroundings: returns the context in which the fork starts.

    Raises:
        PipelineError: the function raised it; the class is kept.
        ChildError: the function raised anything else, or its process died.
    """
    stages = stages or Stages()
    parent = os.getpid()
    if watch is not None:
        watch.prepare()
    sys.stdout.flush()
    sys.stderr.flush()
    with _open_answer() as file, _reaping():
        ours, theirs = socket.socketpair()
        process = _Child(function, watch, stages, theirs, file, describe)
        child = _start(partial(process.run, parent), surroundings)
        theirs.close()
        try:
            with ours:
                if watch is not None:
                    watch.attend(child, ours)
        except BaseException:
            os.kill(child, signal.SIGKILL)
            raise
        finally:
            _, status, usage = os.wait4(child, 0)
        stages.peak_bytes = max(stages.peak_bytes, peak_of(usage))
        file.seek(0)
        return _take_answer(
            file.read(), os.waitstatus_to_exitcode(status), watch, stages
        )


def fork_is_safe() -> bool:
    """Return whether a fork may continue this process's work; Apple's libraries don't allow it."""
    return sys.platform != "darwin" and "PTE_PIPELINE_TEST_SPAWN" not in os.environ


def _start(
    run: Callable[[], NoReturn],
    surroundings: Callable[[], AbstractContextManager[object]],
) -> int:
    """Start a process that runs a function, and return its process ID."""
    if not fork_is_safe():
        for child in call_all("start_process", run, surroundings):
            return int(child)
    with surroundings():
        if (child := os.fork()) == 0:
            run()
    return child


def _open_answer() -> BinaryIO:
    """Open a file for the answer, in memory so that a full disk can't lose the error it caused."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("answer"), "w+b")
    return tempfile.TemporaryFile()


def _take_answer(
    data: bytes, code: int, watch: ForkWatch | None, stages: Stages
) -> Any:
    """Return the child's result, or raise its error."""
    if code < 0:
        raise ChildError(f"its process died ({signal.Signals(-code).name})", -code)
    if not data:
        raise ChildError(f"it ended its process (exit status {code})")
    answer = json.loads(data)
    stages.spans += [tuple(span) for span in answer["spans"]]
    stages.steps += [tuple(step) for step in answer["steps"]]
    stages.current = answer["stage"]
    if watch is not None:
        watch.add(answer["watch"])
    if answer["error"] is not None:
        raise _make_error(*answer["error"])
    return answer["result"]


def _make_error(classes: Sequence[str], text: str) -> PipelineError:
    """Make an error of the first class that is known here and takes only a message."""
    kinds = {_name(kind): kind for kind in _subclasses(PipelineError)}
    for name in classes:
        if (
            kind := kinds.get(name)
        ) is not None and kind.__init__ is Exception.__init__:
            return kind(*text.split("\n"))
    return ChildError(text)


def _subclasses(kind: type[PipelineError]) -> Iterator[type[PipelineError]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _subclasses(subclass)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


class _Child:
    """The code that runs in the fork.

    `line` is connected to `ForkWatch.attend`, `file` takes the answer, and `describe` formats
    errors.
    """

    def __init__(
        self,
        function: Callable[[], Any],
        watch: ForkWatch | None,
        stages: Stages,
        line: socket.socket,
        file: BinaryIO,
        describe: Callable[[BaseException], str],
    ) -> None:
        self._function, self._watch, self._stages = function, watch, stages
        self._line, self._file, self._describe = line, file, describe

    def run(self, parent: int) -> NoReturn:
        """Run the function, write the answer, and always end this process."""
        process, code = os.getpid(), 1
        try:
            _prepare(parent)
            answer = self._answer()
            # Skipped in a fork that the function made and that returned from it.
            if os.getpid() == process:
                self._file.write(json.dumps(answer).encode())
                self._file.flush()
                code = 0
        except BaseException as problem:
            log_traceback(problem)
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _answer(self) -> dict[str, Any]:
        stages = self._stages
        spans_sent, steps = len(stages.spans), len(stages.steps)
        result, error = None, None
        sys.modules[_BEGIN] = sys.modules[__name__]
        try:
            if self._watch is not None:
                self._watch.begin(self._line)
            result = self._function()
            json.dumps(result)
        except BaseException as problem:  # includes SystemExit
            log_traceback(problem)
            error = [list(map(_name, type(problem).__mro__)), self._describe(problem)]
        if self._watch is not None:
            self._watch.modules = _module_files()
        return {
            "result": None if error else result,
            "error": error,
            "spans": stages.spans[spans_sent:],
            "steps": stages.steps[steps:],
            "stage": stages.current,
            "watch": self._watch and self._watch.to_json(),
        }


def _module_files() -> dict[str, str]:
    """Return the files of the modules that were imported since the fork, including reimported ones.

    Modules imported before are not touched: that would copy memory pages with thousands of objects
    that the fork shares.
    """
    names = [*takewhile(lambda name: name != _BEGIN, reversed(sys.modules))]
    files = {name: getattr(sys.modules[name], "__file__", None) for name in names}
    return {
        name: os.path.abspath(file)
        for name, file in files.items()
        if isinstance(file, str)
    }


def _prepare(parent: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    random.seed(_SEED)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(_SEED)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(_SEED)


@contextmanager
def _reaping() -> Iterator[None]:
    """Kill all processes that start within the context and outlive it.

    Orphans are included, since they become children of this process.
    """
    before, was_reaping = _children(), ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(was_reaping))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        while children := _children() - before:
            for child in children:
                with suppress(ProcessLookupError, ChildProcessError):
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
        _prctl(_PR_SET_CHILD_SUBREAPER, was_reaping.value)


def _prctl(option: int, value: Any) -> None:
    """Set an option of this process on Linux; do nothing elsewhere."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value)


def _children() -> set[int]:
    """Return the IDs of this process's children; empty if the kernel doesn't list them."""
    children: set[int] = set()
    with suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children") as listing:
                children |= set(map(int, listing.read().split()))
    return children


def running_files() -> set[str]:
    """Return the files of all functions on the current call stack.

    torch quotes them in stack traces and therefore reads them, also under relative names.
    """
    files, frame = set(), sys._getframe(1)
    while frame is not None:
        files.add(os.path.abspath(frame.f_code.co_filename))
        frame = frame.f_back  # type: ignore[assignment]
    return files
