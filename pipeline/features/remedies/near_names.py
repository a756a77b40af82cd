"""Suggests the attribute or variable that a misspelled name of a model was meant to be."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType
from typing import Any

_LEAST_LIKENESS = 0.7  # similarity of names, from 0 to 1: `haed` and `head` have 0.75


def suggest_name(error: BaseException) -> str:
    """Return a suggestion for the wrong name in an error: `; did you mean 'head'?`, or "".

    Python makes such suggestions only in tracebacks, and not for torch modules, which look up their
    attributes themselves.
    """
    names: Iterable[str] = ()
    name = getattr(error, "name", None)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, AttributeError) and frames:
        owner = error.obj
        if name is None:
            owner, name = _find_lookup(frames[-1])
        with suppress(Exception):  # an object's own `__dir__` may raise
            names = dir(owner)
    elif isinstance(error, NameError) and frames:
        scope = frames[-1]
        names = {*scope.f_locals, *scope.f_globals, *scope.f_builtins}
    if not isinstance(name, str):
        return ""
    near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=_LEAST_LIKENESS)
    return f"; did you mean '{near[0]}'?" if near else ""


def _find_lookup(frame: FrameType) -> tuple[Any, str | None]:
    """Return the object and the name that a `__getattr__` frame was called with.

    The name is None for any other frame.
    """
    if frame.f_code.co_name != "__getattr__":
        return None, None
    names = frame.f_code.co_varnames[:2]
    owner, name = (frame.f_locals.get(variable) for variable in names)
    return owner, name
