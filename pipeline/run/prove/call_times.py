"""Times the calls and loads of a validation, its unavoidable cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pipeline.devices.session import Session
from pipeline.program.eager import Source
from pipeline.program.patching import wrapped
from pipeline.run.stages import LOADS, PACKAGE_CALLS, ROUNDED_CALLS, SOURCE_CALLS

_CALLS = (
    (Source, "_run", SOURCE_CALLS),
    (Session, "load", LOADS),
    (Session, "call_loaded", PACKAGE_CALLS),
)


@contextmanager
def timed_calls(step: Callable[..., Any]) -> Iterator[None]:
    """Run each call of a source or a package, and each load, inside `step(name, about)`.

    They are about the source's program, or the package's method.
    """

    def around(name: str) -> Callable[..., Any]:
        def call(function: Callable[..., Any], subject: Any, *args: Any) -> Any:
            called = ROUNDED_CALLS if getattr(subject, "is_rounded", False) else name
            with step(called, getattr(subject, "program", args[0])):
                return function(subject, *args)

        return call

    with ExitStack() as stack:
        for owner, function, name in _CALLS:
            stack.enter_context(wrapped(owner, function, around(name)))
        yield
