"""Replaces library functions within a context, and identifies them by digests of their source."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from pipeline.store.digest import hash_bytes

# Whether the current lowering may take shortcuts, which produce the same bytes as ExecuTorch does.
lowers_fast: ContextVar[bool] = ContextVar("lowers fast", default=False)


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Within the context, replace an attribute of a class or module by `make(attribute)`."""
    original = vars(owner)[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def wrapped(
    owner: Any, name: str, around: Callable[..., Any]
) -> AbstractContextManager[None]:
    """Within the context, call `around` in place of a function of a class or module.

    `around` receives the original function, then the arguments of the call.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: around(original, *args, **kwargs)

    return replaced(owner, name, make)


def digest_source(*functions: Any) -> str:
    """Return the digest of functions' source, to tell releases apart, or "" if one has none."""
    try:
        source = "".join(map(read_source, functions))
    except (OSError, TypeError):
        return ""
    return hash_bytes(source.encode())


def read_source(function: Any) -> str:
    """Return a function's source as `inspect.getsource` does, but find its end by indentation.

    Tokenizing the source of all patches would take a twentieth of a second in each worker. Raises
    OSError or TypeError if there is no source.
    """
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    lines = (
        linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :] if code else []
    )
    if not lines or not lines[0].lstrip().startswith(("def ", "async def ", "@")):
        return inspect.getsource(function)
    outer_indentation = _indentation(lines[0])
    end = 0
    in_body = in_text = is_continued = False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        goes_on = in_text or is_continued or not in_body
        if not goes_on and _indentation(line) <= outer_indentation:
            break
        in_text ^= line.count('"""') % 2 == 1
        is_continued = line.endswith("\\\n")
        if line.partition("#")[0].rstrip().endswith(":"):
            in_body = True
        end = number
    return "".join(lines[:end])


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())
