"""Functions of libraries that are replaced while something of them runs."""

from __future__ import annotations

import inspect
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
        return hash_bytes("".join(inspect.getsource(inspect.unwrap(f)) for f in functions).encode())
    except (OSError, TypeError):
        return ""
