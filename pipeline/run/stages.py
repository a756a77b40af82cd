"""The stages of one action: which one is under way, and how long each took."""

from __future__ import annotations

import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

IMPORT, WAIT = "import", "wait for another build"
# Steps of a validation, which costs the first three of them at the least.
SOURCE_CALLS, PACKAGE_CALLS, LOADS = "source calls", "package calls", "loads"
ROUNDED_CALLS = "rounded source calls"


class Stages:
    """`current` names the stage under way, and after a failure the one that failed."""

    def __init__(
        self,
        note: Callable[[str, int, int], None] = lambda stage, steps_done, total: None,
    ) -> None:
        """Take a function of the stage under way, and of how many of how many steps of it are
        done."""
        self._note = note
        self.current = "start"
        self.spans: list[
            tuple[str, float, float]
        ] = []  # of `time.perf_counter`, as they ended
        self.steps: list[tuple[str, float, float]] = []  # likewise, within stages
        self._stepping = False
        self.peak_bytes = 0  # of processes that were started for the action

    def tell(self, steps_done: int, total: int) -> None:
        """Say how many of how many steps of the stage are done."""
        self._note(self.current, steps_done, total)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.current = name
        self.tell(0, 0)
        started = time.perf_counter()
        yield
        self.spans.append((name, started, time.perf_counter()))

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step of the stage under way, and say its name, but for one that is part of another
        step."""
        if self._stepping:
            yield
            return
        self._stepping, started = True, time.perf_counter()
        self._note(name, 0, 0)
        try:
            yield
        finally:
            self._stepping = False
            self.tell(0, 0)
            self.steps.append((name, started, time.perf_counter()))

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each stage and step by name, as far as something is made in them; a
        stage that has steps counts what is left beside them."""
        totals: defaultdict[str, float] = defaultdict(float)
        for name, begin, end in self.spans:
            if name not in (IMPORT, WAIT):
                within = sum(e - b for _, b, e in self.steps if begin <= b < end)
                totals[name] += end - begin - within
        for name, begin, end in self.steps:
            totals[name] += end - begin
        return dict(totals)

    @property
    def peak(self) -> int:
        """The most bytes that this process, or one that it started for the action, has held."""
        return max(held_memory("VmHWM"), self.peak_bytes)

    @property
    def total(self) -> float:
        """Seconds of all stages that have ended, but for those in which nothing was made."""
        return sum(
            end - begin for name, begin, end in self.spans if name not in (IMPORT, WAIT)
        )


def reset_peak() -> None:
    """Begin to look for this process's peak of memory anew, where the system can."""
    with suppress(OSError), open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")


def held_memory(field: str) -> int:
    """Return this process's resident memory in bytes: now (`VmRSS`), or the peak since
    `reset_peak` (`VmHWM`). Off Linux both are the peak since the start."""
    with suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return peak_of(resource.getrusage(resource.RUSAGE_SELF))


def peak_of(usage: resource.struct_rusage) -> int:
    """Return the peak of resident memory in bytes. Linux counts it in KiB, macOS in bytes."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
