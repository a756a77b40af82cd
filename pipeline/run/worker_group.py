"""The process group of the workers and of all that they start; it dies with its owner.

The kernel's parent-death signal exists only on Linux, doesn't reach grandchildren, and is tied to
the thread that forked. Instead, a shell leads the group and reads from a pipe whose other end only
the owner holds. However the owner ends, the pipe closes, and the shell kills the group, itself
included.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.run.isolated import ForkWatch

# If the pipe closes without a message, the owner was killed. The shell then waits until the kernel
# has reparented the children, so that a worker that joins too late sees that its parent is gone.
_LEADER = "read word || sleep 0.1; kill -KILL 0"
# The resource trackers of joblib clean up after killed workers, and would print warnings about it.
_QUIET = "ignore:resource_tracker"
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class WorkerGroup:
    """A separate process group led by a shell; processes that this one starts can `join` it."""

    def __init__(self) -> None:
        self._leader = subprocess.Popen(
            ["/bin/sh", "-c", _LEADER],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        self.number = self._leader.pid

    def close(self) -> None:
        """Kill all processes of the group."""
        self._leader.communicate(b"over\n")


@contextmanager
def starting_workers() -> Iterator[None]:
    """Block the signals that stop a run while workers start.

    This way no signal interrupts joblib halfway. Workers inherit the mask, so none prints that it
    was interrupted before it has joined its group.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    sys.warnoptions.append(_QUIET)  # passed to the trackers as `-W`
    try:
        yield
    finally:
        sys.warnoptions.remove(_QUIET)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def join(group: int, parent: int, scratch: str = "") -> None:
    """Make this worker process of `parent` a member of a group, or exit if the group is gone.

    The worker then ignores Ctrl-C, which its parent handles, and its standard input is empty.

    Args:
        scratch: a folder for this process's temporary files, the same as TMPDIR.
    """
    ForkWatch.scratch = scratch
    try:
        os.setpgid(0, group)
    except OSError:
        os._exit(1)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
