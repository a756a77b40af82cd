"""The devices `native`, `qemu:<cpu>` and boards: ExecuTorch's C++ runtime in a process of its own.

A process holds one method of a package, or those that share state, so that its memory is theirs and
what ends it costs no other method.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from pipeline.devices.interface import Device, PackageFiles
from pipeline.features.native.board import Board
from pipeline.features.native.build import find_command
from pipeline.features.native.kernel_libraries import make_arguments
from pipeline.features.native.process import RunnerProcess
from pipeline.features.native.setups import (
    EMULATED,
    NATIVE,
    Setup,
    find_boards,
    find_libraries,
    find_setup,
)
from pipeline.store.errors import DeviceError, PipelineError

_SECONDS = 600.0


class LoadedMethods:
    """Methods that were loaded together in a runner.

    Attributes:
        load_ms: how long that took, with opening the files, in milliseconds.
    """

    def __init__(
        self,
        process: RunnerProcess,
        files: PackageFiles,
        methods: Sequence[str],
        tracing: int = 0,
    ) -> None:
        self._process = process
        self._plans = files.plans
        self._group, load_ms = process.load(methods, tracing)
        self.load_ms = process.open_ms + load_ms

    def call(
        self,
        method: str,
        values: Sequence[Any],
        repeats: int = 1,
        warm_up: int = 0,
        pause: float = 0.0,
    ) -> tuple[list[Any], list[float], int]:
        """Call a method, as `RunnerProcess.call` does."""
        plan = self._plans.get(method)
        orders = plan.input_orders if plan else ()
        return self._process.call(
            self._group, method, values, orders, repeats, warm_up, pause
        )

    def measure_memory(self) -> dict[str, int]:
        """Return the bytes of memory by what they are of. Raises DeviceError."""
        return dict(self._process.measure_memory(self._group))

    def take_trace(self) -> tuple[bytes, bytes]:
        """Return what the methods recorded, as `RunnerProcess.take_trace` does."""
        return self._process.take_trace(self._group)

    def close(self) -> None:
        """Let go of the methods, and of their memory."""
        if self._process.is_alive:
            self._process.drop(self._group)

    def __del__(self) -> None:
        # As Python ends, no thread starts any more, and to wait for one would never end.
        if hasattr(self, "_group") and not sys.is_finalizing():
            with suppress(Exception):
                self.close()


class NativeDevice(Device):
    """Runs packages by the runner of a workspace.

    Attributes:
        setup: what it runs packages with.
        kernel_problem: why libraries of kernels can't be loaded; "" where all can.

    Args:
        name: `native`, `qemu:<cpu>`, or that of a board, whose lock it holds until `close`.
        root: the folder of the workspace whose settings name SDKs.
        seconds: those within which each load and call must come to an end.

    Raises:
        PipelineError: the runner can't be built, or can't run here; a board can't be reached.
    """

    def __init__(self, name: str, root: Path, seconds: float = _SECONDS) -> None:
        self.name = name
        self._seconds = seconds
        self._board: Board | None = None
        self._command: list[str] = []
        self.kernel_problem = ""
        self.setup = find_setup(name, root)
        if self.setup.address:
            self._board = open_board(self.setup)
        else:
            self._command = find_command(self.setup)
        self._processes: WeakKeyDictionary[PackageFiles, dict[Any, RunnerProcess]] = (
            WeakKeyDictionary()
        )
        self._operators: WeakKeyDictionary[PackageFiles, list[str]] = (
            WeakKeyDictionary()
        )

    @property
    def problem(self) -> str:
        """Why nothing more can be asked of its board; "" where all can."""
        return self._board.problem if self._board else ""

    def load(self, files: PackageFiles, method: str) -> tuple[LoadedMethods, str]:
        return self.load_together(files, [method])[method]

    def load_together(
        self, files: PackageFiles, methods: Sequence[str]
    ) -> dict[str, tuple[LoadedMethods, str]]:
        process = self._open(files, tuple(methods))
        loaded = LoadedMethods(process, files, methods)
        return {method: (loaded, method) for method in methods}

    def load_traced(
        self, files: PackageFiles, methods: Sequence[str], tracing: int
    ) -> LoadedMethods:
        """Load methods that record what they do: `process.TIMES` or `process.VALUES`. Raises
        DeviceError."""
        process = self._open(files, tuple(methods))
        return LoadedMethods(process, files, methods, tracing)

    def list_operators(self, files: PackageFiles) -> list[str]:
        """Return the operators that the runtime has registered. Raises DeviceError."""
        if files not in self._operators:
            self._operators[files] = self._open(files, ()).list_operators()
        return self._operators[files]

    def call(
        self, loaded: tuple[LoadedMethods, str], values: Sequence[Any]
    ) -> list[Any]:
        methods, name = loaded
        outputs, _, _ = methods.call(name, values)
        return outputs

    def close(self, files: PackageFiles) -> None:
        """End the processes of a package."""
        for process in self._processes.pop(files, {}).values():
            process.close()
        if self._board and not self._processes:
            self._board.close()
            self._board = None

    def _make_command(self, files: PackageFiles, methods: Sequence[str]) -> list[str]:
        """Return the command of the runner with the libraries that methods need; a board has its
        own."""
        if self.setup.address or not self.setup.kernels:
            return self._command
        operators = list_called_operators(files, methods)
        program = Path(self._command[-1])
        return [*self._command, *make_arguments(self.setup, program, operators)]

    def _open(self, files: PackageFiles, methods: tuple[str, ...]) -> RunnerProcess:
        processes = self._processes.setdefault(files, {})
        process = processes.get(methods)
        if process is None or not process.is_alive:
            if process is not None:
                process.close()
            if self.setup.address and self._board is None:
                self._board = open_board(self.setup)
            process = self._start(files, methods)
            processes[methods] = process
        return process

    def _start(self, files: PackageFiles, methods: tuple[str, ...]) -> RunnerProcess:
        """Start a runner, or take the one that only told its operators, since a library of kernels
        takes seconds to load on an emulated processor. Where libraries end it, start it without
        them, so that what needs no such kernel runs."""
        command = self._make_command(files, methods)
        processes = self._processes[files]
        idle = processes.get(())
        if idle is not None and idle.is_alive and idle.command == command:
            return processes.pop(())
        try:
            return RunnerProcess(command, files, self._seconds, self._board)
        except DeviceError as error:
            if command == self._command:
                raise
            self.kernel_problem = f"with a library of it, it {error.reason}"
        return RunnerProcess(self._command, files, self._seconds)


def list_called_operators(files: PackageFiles, methods: Sequence[str]) -> set[str]:
    """Return the operators that methods of a package call outside of delegates; those of all
    methods where none is named. Raises DeviceError."""
    operators: set[str] = set()
    for method in methods or files.plans:
        plan = files.plans.get(method)
        operators.update(plan.operators if plan else ())
    return operators


def open_board(setup: Setup) -> Board:
    """Return a board whose lock is held, with the runner of its processor in place. Raises
    PipelineError."""
    if setup.problem or setup.address is None:
        raise PipelineError(f"{setup.device}: {setup.problem}")
    board = Board(setup.device, setup.address, setup.wait_seconds, setup.cache_size)
    try:
        choice = setup
        if setup.machines:
            if board.machine not in setup.machines:
                known = ", ".join(sorted(setup.machines))
                raise PipelineError(
                    f"{setup.device}: no runner for {board.machine} here; known: {known}"
                )
            choice = setup.machines[board.machine]
        [program] = find_command(choice)
        board.install_runner(Path(program), find_libraries(choice))
    except BaseException:
        board.close()
        raise
    return board


def make_native() -> NativeDevice:
    """Return the device `native`, by the settings of the working folder. Raises PipelineError."""
    return NativeDevice(NATIVE, Path.cwd())


def make_emulated(cpu: str) -> NativeDevice:
    """Return the device of an emulated processor, such as `cortex-a72`. Raises PipelineError."""
    return NativeDevice(EMULATED + cpu, Path.cwd())


def make_board(name: str) -> NativeDevice:
    """Return the device of a board that `native_boards` names, and hold its lock until `close`.
    Raises PipelineError."""
    if name not in find_boards(Path.cwd()):
        raise PipelineError(f"native_boards names no board '{name}'")
    return NativeDevice(name, Path.cwd())
