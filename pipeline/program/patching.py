"""Functions of libraries that are replaced while something of them runs."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from pipeline.store.digest import hash_bytes

# Whether what runs now may lower by other means than ExecuTorch's own that give the same bytes.
lowers_fast: ContextVar[bool] = ContextVar("lowers fast", default=False)


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an attribute of a class or module, within the context, by what `make` makes of it."""
    original = vars(owner)[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def wrapped(owner: Any, name: str, around: Callable[..., Any]) -> AbstractContextManager[None]:
    """Call `around` in place of a function of a class or module, within the context, with the
    function itself before its arguments."""
    return replaced(
        owner, name, lambda original: lambda *args, **given: around(original, *args, **given)
    )


def digest_source(*functions: Any) -> str:
    """Return the digest of functions' text, which tells releases apart; "" where one has none."""
    try:
        return hash_bytes("".join(map(read_source, functions)).encode())
    except (OSError, TypeError):
        return ""


def read_source(function: Any) -> str:
    """Return a function's text as `inspect.getsource` does, but find its end by indentation: to
    split the text into tokens takes a twentieth of a second of each worker for all patches.

    Raises OSError or TypeError where there is none.
    """
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    text = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :] if code else []
    if not text or not text[0].lstrip().startswith(("def ", "async def ", "@")):
        return inspect.getsource(function)
    outside = _indentation(text[0])
    end, in_body = 0, False
    for number, line in enumerate(text, 1):
        if in_body and line.strip() and _indentation(line) <= outside:
            break
        in_body = in_body or line.partition("#")[0].rstrip().endswith(":")
        end = number if line.strip() else end
    return "".join(text[:end])


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())
