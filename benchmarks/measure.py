"""Measures processes by wall time and CPU time, runs sides in turns, and describes the machine.

This module doesn't know what it measures. Machines are busy, so the figures of two sides come from
one run, in turns, and ratios compare the best of each: noise only ever adds.
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
_LOOK = 0.1  # seconds between two readings of memory, at least
_LOOK_SHARE = 0.05  # of the time that readings may take, since a process waits for them
_LIBC = ctypes.CDLL(None)
_KCMP_VM = 1  # of `kcmp`: compares whether two processes share an address space
_TAIL = 2000  # characters to show of a failed process's output


class BenchmarkError(Exception):
    """A case can't be measured: a command failed, or didn't do what it should."""


@dataclass(frozen=True)
class Result:
    """The result of a case. `ratio` and `limit` are None if it could not be measured; `measured`
    and `to_reach` are the figure and its target in words."""

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
    """The figures of one process.

    They are its wall time and CPU time in seconds (including descendants that were waited for), its
    output, and the peak memory in bytes of the process and its descendants, with shared pages
    counted once.
    """

    wall: float
    cpu: float
    output: str
    peak: int = 0


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Run:
    """Run a command and measure it. Raises BenchmarkError if the process fails."""
    with tempfile.TemporaryFile() as output:  # a pipe would need a reader during the run
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
    """Repeatedly measure the bytes that a process and its descendants hold."""
    held, ended = [0], threading.Event()

    def look() -> None:
        pause = _LOOK
        while not ended.wait(pause):
            started = time.perf_counter()
            held.append(sum(map(_memory, _tree(process))))
            pause = max(_LOOK, (time.perf_counter() - started) / _LOOK_SHARE)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield held
    finally:
        ended.set()
        thread.join()


def _tree(process: int) -> Iterator[int]:
    """Yield the processes of a tree that have an address space to themselves.

    A process between `vfork` and its new program still uses its parent's, which would count twice.
    """
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
    """Return the proportional set size in bytes, swapped pages included.

    It is 0 if the process has ended.
    """
    with suppress(OSError):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        held = (line.split()[1] for line in lines if line.startswith(("Pss:", "SwapPss:")))
        return 1024 * sum(map(int, held))
    return 0


def in_turns(repeats: int, *sides: Callable[[int], _T]) -> list[list[_T]]:
    """Return the results of each side in each repeat; sides get the number of the repeat.

    The first side changes from repeat to repeat, so that no side has the warmer caches.
    """
    given: list[list[_T]] = [[] for _ in sides]
    for repeat in range(repeats):
        order = range(len(sides)) if repeat % 2 == 0 else reversed(range(len(sides)))
        for side in order:
            given[side].append(sides[side](repeat))
    return given


def best(runs: Sequence[Run]) -> float:
    """Return the least wall time."""
    return min(run.wall for run in runs)


def rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]


# The machine


def machine(folder: Path) -> dict[str, Any]:
    """Return facts about the machine that figures depend on, without its name or paths."""
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
    """Return the type of the file system that holds a folder."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    within = [(point, kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(within, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]
