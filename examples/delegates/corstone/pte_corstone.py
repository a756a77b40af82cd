"""Runs packages on Arm's Corstone FVP, a simulator of a Cortex-M with an Ethos-U.

`CORSTONE_FVP` is the simulator. `CORSTONE_RUNNER` is an `arm_executor_runner` with semihosting for
its board, built from ExecuTorch's sources. Both are called as ExecuTorch's tests call them
(`run_corstone` of executorch/backends/arm/test/runner_utils.py): package, inputs and outputs are
files in one folder.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pte_pipeline.devices import DeclaredTensor, Device, DeviceError, Package, PackageFiles

FVP, RUNNER = "CORSTONE_FVP", "CORSTONE_RUNNER"
MACS, TIME_LIMIT = "CORSTONE_MACS", "CORSTONE_TIME_LIMIT"
_MOST_CHARACTERS = 256  # of the runner's command line: the simulator cuts off the rest
_GRACE = 60  # seconds on this machine, in addition to the simulated ones
_FAULT = re.compile(r"(^[EF][: ].*$)|(^.*Hard fault.*$)|(^.*Assertion.*$)", re.MULTILINE)


@dataclass(frozen=True)
class Board:
    """A simulated board: its parameter prefixes, its Ethos-U, and how to turn off its windows."""

    cpu: str
    npu: str
    macs: int
    quiet: tuple[str, ...]


_BOARD_300 = (
    "mps3_board.visualisation.disable-visualisation=1",
    "mps3_board.telnetterminal0.start_telnet=0",
    "mps3_board.uart0.out_file='-'",
)
_BOARD_320 = (
    "mps4_board.visualisation.disable-visualisation=1",
    "vis_hdlcd.disable_visualisation=1",
    "mps4_board.telnetterminal0.start_telnet=0",
    "mps4_board.uart0.out_file='-'",
    "mps4_board.uart0.unbuffered_output=1",
    "mps4_board.uart0.shutdown_on_eot=1",
)
BOARDS = {
    "FVP_Corstone_SSE-300_Ethos-U55": Board("cpu0", "ethosu", 128, _BOARD_300),
    "FVP_Corstone_SSE-300_Ethos-U65": Board("cpu0", "ethosu", 256, _BOARD_300),
    "FVP_Corstone_SSE-320": Board(
        "mps4_board.subsystem.cpu0", "mps4_board.subsystem.ethosu", 128, _BOARD_320
    ),
}


@dataclass(frozen=True)
class LoadedMethod:
    """A package with the loaded method first, since the runner runs the first method of a file."""

    name: str
    pte: bytes
    inputs: tuple[DeclaredTensor, ...]
    outputs: tuple[DeclaredTensor, ...]
    input_orders: tuple[tuple[int, ...], ...]


class Corstone(Device):
    """A device that starts the simulator for each call, so state starts afresh each time."""

    def load(self, files: PackageFiles, method: str) -> LoadedMethod:
        """Return what the runner needs to run a method. Raises DeviceError if it can't run it."""
        where = f"{files.name}: method '{method}' "
        declared = Package(files).signature(method)
        if files.ptds:
            raise DeviceError(where, "has .ptd files, and the runner takes a single .pte")
        plan = files.plans[method]
        if plan.mutable:
            raise DeviceError(where, "keeps state, and each run of the simulator begins anew")
        inputs = [each for each in declared.inputs if each is not None]
        outputs = [each for each in declared.outputs if each is not None]
        if len(inputs) + len(outputs) < len(declared.inputs) + len(declared.outputs):
            raise DeviceError(where, "takes or gives a number, and the runner has tensors only")
        if not inputs:
            raise DeviceError(where, "takes no inputs, and the runner asks for some")
        orders = tuple(order for order in plan.input_orders if order is not None)
        number = list(files.plans).index(method)
        pte = put_first(files.contents(), number)
        return LoadedMethod(method, pte, tuple(inputs), tuple(outputs), orders)

    def call(self, loaded: LoadedMethod, values: Sequence[Any]) -> list[Any]:
        """Run a method once, in a temporary folder. Raises DeviceError."""
        with TemporaryDirectory() as folder:
            path = Path(folder)
            (path / "program.pte").write_bytes(loaded.pte)
            pairs = zip(values, loaded.input_orders, strict=True)
            for number, (value, order) in enumerate(pairs):
                (path / f"i{number}.bin").write_bytes(to_bytes(value.permute(order)))
            run_simulator(make_command(path, len(values)), loaded.name)
            return [
                read_output(path / f"out-{number}.bin", declared, loaded.name)
                for number, declared in enumerate(loaded.outputs)
            ]

    def describe(self, files: PackageFiles, method: str) -> list[str]:
        return [f"runs on {Path(require_file(FVP)).name}"]


def make_command(folder: Path, inputs: int) -> list[str]:
    """Return the command that runs a folder's package on its inputs."""
    fvp, runner = require_file(FVP), require_file(RUNNER)
    board = BOARDS.get(Path(fvp).name)
    if board is None:
        known = ", ".join(BOARDS)
        raise DeviceError("", f"{FVP} is {Path(fvp).name}, must be one of {known}")
    line = "executor_runner -m program.pte -o out"
    line += "".join(f" -i i{number}.bin" for number in range(inputs))
    if len(line) > _MOST_CHARACTERS:
        raise DeviceError("", f"{inputs} inputs are too many for the runner's command line")
    macs = os.environ.get(MACS, str(board.macs))
    parameters = [
        f"{board.npu}.num_macs={macs}",
        *board.quiet,
        f"{board.cpu}.semihosting-enable=1",
        f"{board.cpu}.semihosting-stack_base=0",
        f"{board.cpu}.semihosting-heap_limit=0",
        f"{board.cpu}.semihosting-cwd={folder}",
        f"{board.npu}.extra_args='--fast'",
        f"{board.cpu}.semihosting-cmd_line='{line}'",
    ]
    command = [fvp]
    for parameter in parameters:
        command += ["-C", parameter]
    return [*command, "-a", runner, "--timelimit", str(find_time_limit())]


def find_time_limit() -> int:
    """Return the seconds after which the simulator ends a run."""
    return int(os.environ.get(TIME_LIMIT, "120"))


def require_file(variable: str) -> str:
    """Return the file that an environment variable names. Raises DeviceError."""
    path = os.environ.get(variable, "")
    if not Path(path).is_file():
        what = f"is '{path}', which is no file" if path else "is not set"
        raise DeviceError("", f"{variable} {what}; see docs/guides/running-delegates.md")
    return path


def run_simulator(command: Sequence[str], method: str) -> None:
    """Run the simulator to its end. Raises DeviceError if it, or the runner in it, fails."""
    where = f"method '{method}' "
    limit = find_time_limit() + _GRACE
    try:
        result = subprocess.run(command, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as error:
        raise DeviceError(where, f"did not end within {limit} s on the simulator") from error
    except OSError as error:
        raise DeviceError(where, f"{FVP} can't be started: {error.strerror}") from error
    said = result.stdout.decode(errors="replace")
    faults = [match[0].strip() for match in _FAULT.finditer(said)]
    if result.returncode:
        last = (result.stderr.decode(errors="replace") + said).strip().splitlines()[-1:]
        faults.append(f"the simulator ended with {result.returncode}: {''.join(last)}")
    if faults:
        raise DeviceError(where, f"fails on the simulator: {'; '.join(faults[:3])}")


def to_bytes(value: torch.Tensor) -> bytes:
    """Return a tensor's bytes in the form that the runner copies into an input."""
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def read_output(path: Path, declared: DeclaredTensor, method: str) -> torch.Tensor:
    """Read an output file of the runner, in the default dimension order."""
    where = f"method '{method}' "
    if not path.is_file():
        raise DeviceError(where, f"wrote no {path.name} on the simulator")
    content = torch.frombuffer(bytearray(path.read_bytes() or b"\0"), dtype=torch.uint8)
    expected = torch.empty(declared.sizes, dtype=declared.dtype)
    if path.stat().st_size != expected.nbytes:
        what = f"wrote {path.stat().st_size} bytes into {path.name}, must be {expected.nbytes}"
        raise DeviceError(where, what)
    if not expected.nbytes:
        return expected
    return content.view(expected.dtype).reshape(declared.sizes)


def put_first(pte: bytes, number: int) -> bytes:
    """Return a program with method `number` first, since the runner runs the first one.

    The flatbuffer's list of methods holds offsets relative to their own positions.
    """
    content = bytearray(pte)

    def read(place: int, kind: str = "<I") -> int:
        return int(struct.unpack_from(kind, content, place)[0])

    root = read(0)
    table = root - read(root, "<i")
    field = root + read(table + 4 + 2, "<H")  # `execution_plan`, the second field of a Program
    methods = field + read(field)
    first, other = methods + 4, methods + 4 + 4 * number
    places = first + read(first), other + read(other)
    struct.pack_into("<I", content, first, places[1] - first)
    struct.pack_into("<I", content, other, places[0] - other)
    return bytes(content)
