"""Measuring: processes with their wall time and CPU time, sides in turns, and the machine.

It knows nothing of what is measured. Machines are busy, so figures of two sides come from one run,
in turns, and ratios are taken of the best of each: noise only ever adds.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")
_LOOK = 0.1  # seconds between two looks at memory
_LIBC = ctypes.CDLL(None)
_KCMP_VM = 1  # of `kcmp`: whether two processes have one address space
_TAIL = 2000  # characters of the output of a process that failed


class BenchmarkError(Exception):
    """A case can't be measured: something that it runs failed, or did not do what it is to."""


@dataclass(frozen=True)
class Result:
    """What a case measured. `ratio` and `limit` are None where it could not be measured;
    `measured` and `to_reach` are the same for people."""

    case: str
    ratio: float | None
    limit: float | None
    ok: bool
    measured: str
    to_reach: str
    note: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """Of one process: seconds of wall time, of CPU time with those of its descendants that were
    waited for, all that it printed, and the most bytes that it and its descendants held at a time,
    what they share counted once."""

    wall: float
    cpu: float
    output: str
    peak: int = 0


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Run:
    """Raises BenchmarkError when the process fails."""
    with tempfile.TemporaryFile() as output:  # a pipe would have to be read meanwhile
        started = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        with _watched_memory(process.pid) as peak:
            _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if process.returncode:
        raise BenchmarkError(f"{' '.join(command)}: exit {process.returncode}\n{text[-_TAIL:]}")
    return Run(wall, usage.ru_utime + usage.ru_stime, text, max(peak))


@contextmanager
def _watched_memory(process: int) -> Iterator[list[int]]:
    """Look, again and again, how many bytes a process and its descendants hold."""
    held, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK):
            held.append(sum(map(_memory, _tree(process))))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield held
    finally:
        ended.set()
        thread.join()


def _tree(process: int) -> Iterator[int]:
    """The processes that hold memory of their own: one that is about to be another program
    (`vfork`) still has its parent's, which would count twice."""
    yield process
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                if not _have_one_memory(process, child):
                    yield from _tree(child)


def _have_one_memory(one: int, other: int) -> bool:
    number = {"x86_64": 312, "aarch64": 272}.get(platform.machine())
    return number is not None and _LIBC.syscall(number, one, other, _KCMP_VM, 0, 0) == 0


def _memory(process: int) -> int:
    """The proportional set size in bytes; 0 of a process that has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def in_turns(repeats: int, *sides: Callable[[int], _T]) -> list[list[_T]]:
    """What each side gives in each repeat, whose number it is told. Who goes first changes, so
    that no side has the warmer caches."""
    given: list[list[_T]] = [[] for _ in sides]
    for repeat in range(repeats):
        order = range(len(sides)) if repeat % 2 == 0 else reversed(range(len(sides)))
        for side in order:
            given[side].append(sides[side](repeat))
    return given


def best(runs: Sequence[Run]) -> float:
    """The least wall time."""
    return min(run.wall for run in runs)


def rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]


# The machine


def machine(folder: Path) -> dict[str, Any]:
    """What figures depend on, but for names of machines and paths."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "filesystem": _filesystem(folder),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "executorch", "doit", "blake3")},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _filesystem(folder: Path) -> str:
    """The type of the filesystem that a folder is on."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    within = [(point, kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(within, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]
