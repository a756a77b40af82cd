"""Memory as Linux reports it: used by processes, available, and processes killed for lack of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
# By cgroup version: the files with the limit and the usage, and the field of `memory.stat` with the
# bytes of cached files that are not in use.
_GROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def peak_memory(process: int) -> int:
    """Return the peak resident memory of a process and its children in bytes; 0 if it is gone."""
    return _sum_field(process, "VmHWM:")


def own_memory(process: int) -> int:
    """Return the anonymous memory of a process and its children in bytes, or 0 if it is gone.

    Pages of files are left out, since they are shared or can be read again.
    """
    return _sum_field(process, "RssAnon:")


def _sum_field(process: int, name: str) -> int:
    """Return the sum of a size field over a process and its children, in bytes."""
    numbers = process, *_children(process)
    files = (Path(f"/proc/{number}/status") for number in numbers)
    return 1024 * sum(_read_field(file, name) for file in files)


def _read_field(file: Path, name: str) -> int:
    """Return the number after a name at the start of a line, or 0 if there is none."""
    with suppress(OSError, ValueError, IndexError):
        for line in file.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0


def available_memory() -> float:
    """Return the bytes that processes can still take, on this machine and in each enclosing cgroup.

    Infinite if neither is known.
    """
    machine = _read_field(Path("/proc/meminfo"), "MemAvailable:") * 1024 or math.inf
    return min(
        [
            machine,
            *(free for group in _groups() if (free := _left_in(*group)) is not None),
        ]
    )


def _left_in(folder: Path, version: int) -> int | None:
    """Return the bytes left in a cgroup, or None if it has no limit.

    Cached files count as used, but those not in use are evicted when memory is needed.
    """
    limit, used, inactive = _GROUP_FILES[version]
    try:
        most = int((folder / limit).read_text())
        used_bytes = int((folder / used).read_text())
    except (OSError, ValueError):  # the limit is "max"
        return None
    return max(
        0, most - used_bytes + _read_field(folder / "memory.stat", f"{inactive} ")
    )


def _children(process: int) -> Iterator[int]:
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            yield from map(int, (task / "children").read_text().split())


def count_oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory, or 0 if that is unknown.

    Counts those of this cgroup if it reports them, else those of the machine.
    """
    for path in (*_counters(), Path("/proc/vmstat")):
        with suppress(OSError):
            if match := _COUNT.search(path.read_text()):
                return int(match[1])
    return 0


@cache
def _counters() -> tuple[Path, ...]:
    """Return the files of this process's cgroups that may contain the count."""
    names = {1: "memory.oom_control", 2: "memory.events"}
    folders = {version: folder for folder, version in reversed(_groups())}
    return tuple(folder / names[version] for version, folder in folders.items())


@cache
def _groups() -> tuple[tuple[Path, int], ...]:
    """Return the folders of this process's memory cgroups and their ancestors, with the versions.

    Within a container, only the visible ones are returned.
    """
    groups: list[tuple[Path, int]] = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, name = line.split(":", 2)
            if not kinds or "memory" in kinds.split(","):
                root = _CGROUPS / "memory" if kinds else _CGROUPS
                group = root / name.lstrip("/")
                around = [group, *group.parents]
                groups += [
                    (folder, 1 if kinds else 2)
                    for folder in around
                    if folder.is_relative_to(root)
                ]
    return tuple(groups)
