"""What Linux says of memory: how much processes hold, how much is there for more, and whether it
ended some for lack of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
# By version: the files of a control group's limit and of what it holds, and the field of
# `memory.stat` for files that it has read and does not use.
_GROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def peak_memory(process: int) -> int:
    """Return the peak of the resident memory of a process and its children in bytes, 0 for one that
    is gone."""
    return _sum_field(process, "VmHWM:")


def own_memory(process: int) -> int:
    """Return the bytes that a process and its children hold for themselves, 0 for one that is gone:
    what they have of files is shared, or can be read again."""
    return _sum_field(process, "RssAnon:")


def _sum_field(process: int, name: str) -> int:
    """Return the sum of a size over a process and its children in bytes."""
    numbers = process, *_children(process)
    files = (Path(f"/proc/{number}/status") for number in numbers)
    return 1024 * sum(_read_field(file, name) for file in files)


def _read_field(file: Path, name: str) -> int:
    """Return the number behind a name at the beginning of a line, 0 where there is none."""
    with suppress(OSError, ValueError, IndexError):
        for line in file.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0


def available_memory() -> float:
    """Return the bytes that processes can still take: of this machine, and of each control group
    around this process; infinite where nothing says."""
    machine = _read_field(Path("/proc/meminfo"), "MemAvailable:") * 1024 or math.inf
    return min(
        [
            machine,
            *(free for group in _groups() if (free := _left_in(*group)) is not None),
        ]
    )


def _left_in(folder: Path, version: int) -> int | None:
    """Return what a control group leaves, where it has a limit. Files that were read count for it,
    and go when memory is wanted, but for those in use."""
    limit, used, inactive = _GROUP_FILES[version]
    try:
        most = int((folder / limit).read_text())
        used_bytes = int((folder / used).read_text())
    except (OSError, ValueError):  # "max"
        return None
    return max(
        0, most - used_bytes + _read_field(folder / "memory.stat", f"{inactive} ")
    )


def _children(process: int) -> Iterator[int]:
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            yield from map(int, (task / "children").read_text().split())


def count_oom_kills() -> int:
    """Return how many processes the kernel has ended for lack of memory: in this control group
    where it counts them, or else on this machine; 0 where nobody counts."""
    for path in (*_counters(), Path("/proc/vmstat")):
        with suppress(OSError):
            if match := _COUNT.search(path.read_text()):
                return int(match[1])
    return 0


@cache
def _counters() -> tuple[Path, ...]:
    """Return the files of this process's control group that may count."""
    names = {1: "memory.oom_control", 2: "memory.events"}
    folders = {version: folder for folder, version in reversed(_groups())}
    return tuple(folder / names[version] for version, folder in folders.items())


@cache
def _groups() -> tuple[tuple[Path, int], ...]:
    """Return the folders of this process's control groups for memory and of those around them, each
    with its version; of a container, those that it can see."""
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
