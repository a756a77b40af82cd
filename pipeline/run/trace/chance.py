"""What differs from run to run: the clock, and numbers that come from no seed.

Nothing of either reaches the kernel as a call of its own, so the functions of Python that give them
are wrapped, and only calls from code that counts are noted: libraries time and name things all day.
"""

from __future__ import annotations

import datetime
import os
import random
import secrets
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_CLOCK, _CHANCE = "the clock", "random numbers without a seed"
Note = Callable[[str, str, int], None]


class _Function(NamedTuple):
    """A function or class that gives something else each time, unless it gets `settled_by`
    arguments; None: whatever it gets."""

    owner: Any
    name: str
    what: str
    settled_by: int | None = None

    def is_settled(self, arguments: int) -> bool:
        return self.settled_by is not None and arguments >= self.settled_by


def _functions() -> Iterator[_Function]:
    for name in ("time", "time_ns"):
        yield _Function(time, name, _CLOCK)
    for name in ("localtime", "gmtime", "ctime", "asctime"):
        yield _Function(time, name, _CLOCK, 1)
    yield _Function(time, "strftime", _CLOCK, 2)
    yield _Function(os, "urandom", _CHANCE)
    for name in ("uuid1", "uuid4"):
        yield _Function(uuid, name, _CHANCE)
    for name in ("token_bytes", "token_hex", "token_urlsafe", "randbits", "randbelow", "choice"):
        yield _Function(secrets, name, _CHANCE)
    yield _Function(random, "SystemRandom", _CHANCE)
    for name in ("Random", "seed"):
        yield _Function(random, name, _CHANCE, 1)
    if (numpy := sys.modules.get("numpy")) is not None:
        for name in ("default_rng", "seed", "RandomState", "SeedSequence"):
            yield _Function(numpy.random, name, _CHANCE, 1)
    if (torch := sys.modules.get("torch")) is not None:
        for module in (torch, torch.random):
            yield _Function(module, "seed", _CHANCE)


def hear_chance(note: Note) -> None:
    """Call `note` with a phrase, the file and the line of the code that asks, wherever Python code
    of this process asks for the time or for chance from now on."""
    for function in _functions():
        original = getattr(function.owner, function.name)
        replace = _stand_in if isinstance(original, type) else _wrap
        setattr(function.owner, function.name, replace(original, function, note))
    for name, asks in (("date", ["today"]), ("datetime", ["now", "utcnow", "today"])):
        original = getattr(datetime, name)
        function = _Function(datetime, name, _CLOCK, 0)
        made = _stand_in(original, function, note)
        for each in asks:
            asking = _Function(made, each, _CLOCK)
            setattr(made, each, _wrap(getattr(made, each), asking, note))
        setattr(datetime, name, made)


def _note_caller(function: _Function, note: Note) -> None:
    caller = sys._getframe(2)
    note(function.what, caller.f_code.co_filename, caller.f_lineno)


def _wrap(original: Callable[..., Any], function: _Function, note: Note) -> Callable[..., Any]:
    def wrapped(*args: Any, **options: Any) -> Any:
        if not function.is_settled(len(args) + len(options)):
            _note_caller(function, note)
        return original(*args, **options)

    return wrapped


def _stand_in(original: Any, function: _Function, note: Note) -> Any:
    """Make a class in the place of another, of which all objects of that one are instances too."""

    class Kind(type(original)):  # type: ignore[misc]
        def __call__(cls, *args: Any, **options: Any) -> Any:
            if not function.is_settled(len(args) + len(options)):
                _note_caller(function, note)
            return super().__call__(*args, **options)

        def __instancecheck__(cls, each: Any) -> bool:
            return isinstance(each, original) if cls is made else super().__instancecheck__(each)

        def __subclasscheck__(cls, each: Any) -> bool:
            return issubclass(each, original) if cls is made else super().__subclasscheck__(each)

    names = {"__module__": original.__module__, "__qualname__": original.__qualname__}
    made = Kind(original.__name__, (original,), names)
    return made
