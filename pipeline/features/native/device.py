"""The devices `native`, `qemu:<cpu>` and boards: ExecuTorch's C++ runtime in a separate process.

Each process holds one method of a package, or a group of methods that share state. Its memory is
then theirs alone, and a crash affects no other method.
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
        load_ms: the time to open the files and load the methods, in milliseconds.
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
        """Call a method; see `RunnerProcess.call`."""
        plan = self._plans.get(method)
        orders = plan.input_orders if plan else ()
        return self._process.call(
            self._group, method, values, orders, repeats, warm_up, pause
        )

    def measure_memory(self) -> dict[str, int]:
        """Return the bytes of memory by kind (`process.MEMORY`).

        Raises DeviceError if that fails.
        """
        return dict(self._process.measure_memory(self._group))

    def take_trace(self) -> tuple[bytes, bytes]:
        """Return what the methods recorded; see `RunnerProcess.take_trace`."""
        return self._process.take_trace(self._group)

    def close(self) -> None:
        """Release the methods and their memory."""
        if self._process.is_alive:
            self._process.drop(self._group)

    def __del__(self) -> None:
        # While Python shuts down, no thread can start, and waiting for one would never end.
        if hasattr(self, "_group") and not sys.is_finalizing():
            with suppress(Exception):
                self.close()


class NativeDevice(Device):
    """Runs packages with the runner of a workspace.

    Attributes:
        setup: the SDK or runner, compiler and emulator that this device uses.
        kernel_problem: why kernel libraries can't be loaded, or "" if all can.

    Args:
        name: `native`, `qemu:<cpu>`, or the name of a board, whose lock is held until `close`.
        root: the folder of the workspace whose settings name SDKs.
        seconds: the time limit of each load and each call.

    Raises:
        PipelineError: the runner can't be built or can't run here, or a board can't be reached.
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
        """Why the device's board can't be used any more, or "" while it can."""
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
        """Load methods that record their calls: `tracing` is `process.TIMES` or `process.VALUES`.

        Raises DeviceError if they don't load.
        """
        process = self._open(files, tuple(methods))
        return LoadedMethods(process, files, methods, tracing)

    def list_operators(self, files: PackageFiles) -> list[str]:
        """Return the operators that the runtime registered.

        Raises DeviceError if the runner fails.
        """
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
        """End the processes of a package, and release the board's lock after the last package."""
        for process in self._processes.pop(files, {}).values():
            process.close()
        if self._board and not self._processes:
            self._board.close()
            self._board = None

    def _make_command(self, files: PackageFiles, methods: Sequence[str]) -> list[str]:
        """Return the command of the runner, with the libraries that the methods need.

        A board builds the command itself.
        """
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
        """Start a runner for methods, or take over the idle runner.

        The idle runner has only listed its operators.

        Reusing the idle runner saves the time to load a library of kernels, which is seconds on an
        emulated processor. If the runner fails with such libraries, it is started without them, so
        that methods that don't need their kernels still run.
        """
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
    """Return the operators that methods of a package call outside delegates.

    Without `methods`, these are the operators of all methods. Raises DeviceError if the package
    can't be read.
    """
    operators: set[str] = set()
    for method in methods or files.plans:
        plan = files.plans.get(method)
        operators.update(plan.operators if plan else ())
    return operators


def open_board(setup: Setup) -> Board:
    """Lock a board, install the runner for its processor, and return the board.

    Raises PipelineError if the board can't be reached, or no runner can run on it.
    """
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
    """Return the device `native`, with the settings of the working folder.

    Raises PipelineError if it can't run here.
    """
    return NativeDevice(NATIVE, Path.cwd())


def make_emulated(cpu: str) -> NativeDevice:
    """Return the device of an emulated processor, such as `cortex-a72`.

    Raises PipelineError if it can't run here.
    """
    return NativeDevice(EMULATED + cpu, Path.cwd())


def make_board(name: str) -> NativeDevice:
    """Return the device of a board that `native_boards` names, holding its lock until `close`.

    Raises PipelineError if the board has no address or can't be reached.
    """
    if name not in find_boards(Path.cwd()):
        raise PipelineError(f"native_boards names no board '{name}'")
    return NativeDevice(name, Path.cwd())
