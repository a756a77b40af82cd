"""Linux control groups, which limit the memory of a process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.run.executors import system

_LIMITS = {1: "memory.limit_in_bytes", 2: "memory.max"}
_PATIENCE = 10.0  # seconds to wait for its processes to end


@contextmanager
def control_group(limit: int) -> Iterator[Path]:
    """Make a control group inside this process's group, with a memory limit in bytes.

    Swap doesn't count towards the limit. Raises OSError if no group can be made.
    """
    groups = system._groups()
    if not groups:
        raise OSError("there are no control groups")
    own, version = groups[0]
    group = own / f"limited-{os.getpid()}"
    try:
        group.mkdir()
        (group / _LIMITS[version]).write_text(str(limit))
        with suppress(OSError):
            (group / "memory.swap.max").write_text("0")
    except OSError:
        with suppress(OSError):
            group.rmdir()
        raise
    try:
        yield group
    finally:
        until = time.monotonic() + _PATIENCE
        while (group / "cgroup.procs").read_text() and time.monotonic() < until:
            time.sleep(0.05)
        group.rmdir()


def entering(group: Path, command: Sequence[str]) -> list[str]:
    """Return a command that runs another command in a group."""
    return ["sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh", *command]
