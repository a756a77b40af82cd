"""Follows a fork, by its system calls if the kernel reports them, or by Python's audit events."""

from __future__ import annotations

import os
import select
import socket
from contextlib import suppress
from functools import cache

from pipeline.features.tracing import seccomp
from pipeline.features.tracing.audit import hear_audit_events
from pipeline.features.tracing.environment import record_environment
from pipeline.features.tracing.supervise import Supervisor
from pipeline.features.tracing.watch import FileAccessLog, Observe, Wanted
from pipeline.run.isolated import run_isolated
from pipeline.store.errors import PipelineError


class Tracer(FileAccessLog):
    """Fills its log while a fork runs.

    `kernel` says whether to ask the kernel; None means whenever that is possible.
    """

    def __init__(
        self, wanted: Wanted, observe: Observe, kernel: bool | None = None
    ) -> None:
        super().__init__(wanted, observe)
        self.is_kernel = has_kernel_view() if kernel is None else kernel

    def prepare(self) -> None:
        if self.is_kernel:
            seccomp.prepare()

    def begin(self, line: socket.socket) -> None:
        record_environment(self.environment, self.readers)
        if not self.is_kernel:
            hear_audit_events(self)
            return
        self.view = "kernel"
        line.sendall(seccomp.install().to_bytes(4, "little"))
        line.recv(1)

    def attend(self, child: int, line: socket.socket) -> None:
        """Look at the system calls of the child and of all that it starts, until the child ends."""
        if not self.is_kernel:
            return
        self.view = "kernel"
        process = os.pidfd_open(child)
        try:
            if not (number := line.recv(4)):
                return  # the child failed before
            listener = seccomp.Listener(process, int.from_bytes(number, "little"))
            try:
                line.sendall(b".")
                _answer_calls(listener, process, Supervisor(self))
            finally:
                listener.close()
        finally:
            os.close(process)


@cache
def has_kernel_view() -> bool:
    """Return whether the kernel reports a fork's system calls to this process, by trying it."""
    if not hasattr(os, "pidfd_open"):
        return False
    tracer = Tracer(lambda path: True, lambda kind, path: None, kernel=True)
    with suppress(OSError, KeyError, AttributeError, PipelineError):
        run_isolated(lambda: os.path.exists("/"), tracer)
    return ("file", "/") in tracer.seen


def _answer_calls(
    listener: seccomp.Listener, process: int, supervisor: Supervisor
) -> None:
    waiting = select.poll()
    waiting.register(listener.descriptor, select.POLLIN)
    waiting.register(process, select.POLLIN)
    while process not in (ready := dict(waiting.poll())):
        if not ready[listener.descriptor] & select.POLLIN:
            # No process is left to make calls; this also frees memory.
            waiting.unregister(listener.descriptor)
        elif (call := listener.receive()) is not None:
            supervisor.see(call)
            listener.proceed(call)
