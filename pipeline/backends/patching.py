"""Functions of libraries that are replaced while something of them runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any


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
