"""The stages of one action: the current one, and the time each took."""

from __future__ import annotations

import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

IMPORT, WAIT = "import", "wait for another build"
# Steps of a validation; every validation takes at least the first three.
SOURCE_CALLS, PACKAGE_CALLS, LOADS = "source calls", "package calls", "loads"
ROUNDED_CALLS = "rounded source calls"


class Stages:
    """The timed stages and steps of one action.

    Attributes:
        current: the current stage; after a failure, the stage that failed.
    """

    def __init__(
        self,
        note: Callable[[str, int, int], None] = lambda stage, steps_done, total: None,
    ) -> None:
        """Take a callback for progress: the stage, the steps done in it, and their total."""
        self._note = note
        self.current = "start"
        # Times of `time.perf_counter`, in the order in which stages and steps ended.
        self.spans: list[tuple[str, float, float]] = []
        self.steps: list[tuple[str, float, float]] = []  # within stages
        self.subjects: list[object] = []  # what each step was about
        self._stepping = False
        self.peak_bytes = 0  # of processes started for the action

    def tell(self, steps_done: int, total: int) -> None:
        """Report how many steps of the current stage are done, out of how many."""
        self._note(self.current, steps_done, total)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.current = name
        self.tell(0, 0)
        started = time.perf_counter()
        yield
        self.spans.append((name, started, time.perf_counter()))

    @contextmanager
    def step(self, name: str, about: object = None) -> Iterator[None]:
        """Time and report a step of the current stage, unless it is nested in another step."""
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
            self.subjects.append(about)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each stage and step by name, except waiting and imports.

        A stage with steps counts only the time spent outside them.
        """
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
        """Peak memory in bytes of this process or of one that it started for the action."""
        return max(held_memory("VmHWM"), self.peak_bytes)

    @property
    def total(self) -> float:
        """Seconds of all completed stages, except waiting and imports."""
        return sum(
            end - begin for name, begin, end in self.spans if name not in (IMPORT, WAIT)
        )


def reset_peak() -> None:
    """Reset this process's peak memory counter, if the system allows it."""
    with suppress(OSError), open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")


def held_memory(field: str) -> int:
    """Return this process's resident memory in bytes.

    `VmRSS` is the current value, `VmHWM` the peak since `reset_peak`. Outside Linux both give the
    peak since the process started.
    """
    with suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return peak_of(resource.getrusage(resource.RUSAGE_SELF))


def peak_of(usage: resource.struct_rusage) -> int:
    """Return peak resident memory in bytes. Linux counts it in KiB, macOS in bytes."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
