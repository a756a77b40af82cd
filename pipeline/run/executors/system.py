"""What Linux says of processes: the memory that they hold, and whether it ended some for lack of
it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def peak_memory(process: int) -> int:
    """Return the peak of the resident memory of a process and its children in bytes, 0 for one that
    is gone."""
    return sum(map(_own_peak, [process, *_children(process)]))


def _own_peak(process: int) -> int:
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _children(process: int) -> Iterator[int]:
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            yield from map(int, (task / "children").read_text().split())


def count_oom_kills() -> int:
    """Return how many processes the kernel has ended for lack of memory: in this control group
    where it counts them, or else on this machine; 0 where nobody counts."""
    for path in (*_counters(), Path("/proc/vmstat")):
        with suppress(OSError):
            if found := _COUNT.search(path.read_text()):
                return int(found[1])
    return 0


@cache
def _counters() -> tuple[Path, ...]:
    """Return the files of this process's control group, of version 2 or 1, that may count."""
    found = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, name = line.split(":", 2)
            if not kinds:
                found.append(_CGROUPS / name.lstrip("/") / "memory.events")
            elif "memory" in kinds.split(","):
                found.append(_CGROUPS / "memory" / name.lstrip("/") / "memory.oom_control")
    return tuple(found)
