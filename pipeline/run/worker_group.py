"""The process group of the workers and of all that they start. It dies with its owner.

A kernel's signal at the death of a parent exists on Linux alone, reaches children but not theirs,
and goes by the thread that forked them. So a shell leads the group, and reads a pipe whose other
end its owner alone holds: however that process ends, the pipe does, and the shell kills the group,
itself included.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.run.isolated import ForkWatch

# Without a word from its owner, which was killed then, the shell waits until the kernel has given
# the children to another parent, so that a worker that joins too late to be killed knows it.
_LEADER = "read word || sleep 0.1; kill -KILL 0"
# The trackers that joblib starts clear up after killed workers, and would warn that they did.
_QUIET = "ignore:resource_tracker"
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class WorkerGroup:
    """A process group of its own, led by a shell. Processes that this one starts can `join`."""

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
    """Hold back the signals that stop a run while workers are started.

    None of them interrupts joblib in between; and a worker does not print that it was interrupted
    before it has joined its group, as it inherits the mask.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    sys.warnoptions.append(_QUIET)  # given to the trackers as `-W`
    try:
        yield
    finally:
        sys.warnoptions.remove(_QUIET)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def join(group: int, parent: int, scratch: str = "") -> None:
    """Make this process, a worker of `parent`, a member of a group, or end it if that is too late.

    It leaves Ctrl-C to its parent, and reads nothing from a terminal.

    Args:
        scratch: a folder for the temporary files of this process alone, which TMPDIR names.
    """
    ForkWatch.scratch = scratch
    try:
        os.setpgid(0, group)
    except OSError:
        os._exit(1)
    if os.getppid() != parent:
        os._exit(1)
    _keep_for_ever()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)


def _keep_for_ever() -> None:
    """Keep joblib from ending this worker when it has grown by 300 MB, which it does where psutil
    is installed (joblib 1.6, `_process_worker`): it would import all again. It can go when that is
    an option."""
    from joblib.externals.loky import process_executor

    process_executor._USE_PSUTIL = False
