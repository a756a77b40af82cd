"""Finds the Python calls that make a reference return different values each time.

These are clocks, and the random number generators of Python, numpy, the system and torch. An export
runs such a call once, while it traces, and keeps the value. Python's profiler sees the calls,
except those into numpy, which are intercepted at the names in `numpy.random`.
"""

from __future__ import annotations

import random
import secrets
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy
import torch

import pipeline
from pipeline.program.source_lines import choose_frame, is_model_file, name_line
from pipeline.store.errors import listed
from pipeline.store.source_line import SourceLine

_MOST_NAMED = 3
_OUR_FILES = str(Path(pipeline.__file__).parent)
# Python modules that draw through others: a draw is named after the one that the model calls.
_LIBRARIES = {module.__file__: module.__name__ for module in (random, secrets, uuid)}
_CLOCKS = frozenset(
    f"{name}{suffix}"
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
    for suffix in ("", "_ns")
)
_DATES = frozenset({"datetime.now", "datetime.utcnow", "date.today", "datetime.today"})
_DRAWN_BY_PYTHON = frozenset(
    {"Random.random", "Random.getrandbits", "urandom", "getrandom"}
)
_TORCH_DRAWS = """
    bernoulli bernoulli_ cauchy_ dropout exponential_ geometric_ log_normal_ multinomial normal
    normal_ poisson rand rand_like randint randint_like randn randn_like randperm random_ uniform_
"""
_DRAWN_BY_TORCH = frozenset(_TORCH_DRAWS.split())
# These make or set a generator, and draw nothing.
_NOT_DRAWN_BY_NUMPY = frozenset({"seed", "get_state", "set_state", "get_bit_generator"})


def find_random_calls(run: Callable[[], object], root: Path) -> list[str]:
    """Run a function and return its calls that give a different value each time.

    A call is named as in `random.gauss (models/asr.py:12)`.

    Args:
        root: the workspace; lines are named by its files.
    """
    calls: dict[str, None] = {}

    def note(name: str, frame: FrameType | None) -> None:
        line = _name_line(frame, root)
        calls.setdefault(f"{name} ({line})" if line else name)

    with _watching_numpy(note), _watching(note):
        run()
    return list(calls)


def describe_random_calls(calls: Sequence[str]) -> str:
    """Return a clause that names the calls.

    It adds that an export keeps a single value of calls that aren't torch's.
    """
    names = listed(calls, _MOST_NAMED)
    if all(call.startswith("torch.") for call in calls):
        return f"it calls {names}"
    return f"it calls {names}: an export keeps the value that tracing saw"


def draws_numbers(calls: Sequence[str]) -> bool:
    """Return whether some of these calls draw random numbers, rather than read a clock."""
    clocks = tuple(
        f"{name} " for name in (*_DATES, *(f"time.{name}" for name in _CLOCKS))
    )
    return not all(f"{call} ".startswith(clocks) for call in calls)


Note = Callable[[str, FrameType | None], None]


@contextmanager
def _watching(note: Note) -> Iterator[None]:
    """Record the calls of built-in functions that return a different value each time."""
    profiler = sys.getprofile()

    def profile(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and (name := _name_call(function)):
            name, caller = _find_caller(name, frame)
            # torch's own modules draw for the model; other calls count only in the model's code.
            if caller is not None and (
                name.startswith("torch.") or _is_of_model(caller)
            ):
                note(name, caller)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(profiler)


def _name_call(function: Any) -> str:
    """Return the usual name of a built-in function that varies between calls, or ""."""
    name, module = function.__name__, getattr(function, "__module__", None)
    qualified = function.__qualname__
    if module == "time" and name in _CLOCKS:
        return f"time.{name}"
    if qualified in _DATES:
        return str(qualified)
    if qualified in _DRAWN_BY_PYTHON:
        return f"os.{name}" if module == "posix" else f"random.{name}"
    is_of_torch = module == "torch" or isinstance(
        getattr(function, "__self__", 0), torch.Tensor
    )
    return f"torch.{name}" if is_of_torch and name in _DRAWN_BY_TORCH else ""


def _find_caller(name: str, frame: FrameType | None) -> tuple[str, FrameType | None]:
    """Return the call that a model makes, and its frame.

    Python's own modules may have called the function on the model's behalf.
    """
    while frame is not None and frame.f_code.co_filename in _LIBRARIES:
        name = f"{_LIBRARIES[frame.f_code.co_filename]}.{frame.f_code.co_name}"
        frame = frame.f_back
    return name, frame


def _is_of_model(frame: FrameType) -> bool:
    """Return whether a call comes from a model's own code: torch reads clocks too."""
    file = frame.f_code.co_filename
    return not file.startswith(_OUR_FILES) and is_model_file(file)


@contextmanager
def _watching_numpy(note: Note) -> Iterator[None]:
    """Record the calls of `numpy.random`'s functions, and of generators made without a seed."""
    functions = {}
    for name in numpy.random.__all__:
        function = getattr(numpy.random, name)
        # Classes, such as `Generator`, don't draw.
        if (
            not callable(function)
            or isinstance(function, type)
            or name in _NOT_DRAWN_BY_NUMPY
        ):
            continue
        functions[name] = function
    try:
        for name, function in functions.items():
            setattr(numpy.random, name, _noting(note, name, function))
        yield
    finally:
        for name, function in functions.items():
            setattr(numpy.random, name, function)


def _noting(note: Note, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        # A seeded generator gives the same numbers each time.
        if name != "default_rng" or not (args or kwargs):
            note(f"numpy.random.{name}", sys._getframe(1))
        return function(*args, **kwargs)

    return call


def _name_line(frame: FrameType | None, root: Path) -> str:
    """Return the line of a model that a call came from, or ""."""
    frames: list[SourceLine] = []
    while frame is not None and not frame.f_code.co_filename.startswith(_OUR_FILES):
        code = frame.f_code
        if is_model_file(code.co_filename):
            frames.insert(
                0, SourceLine(code.co_filename, frame.f_lineno, code.co_name, "")
            )
        frame = frame.f_back
    chosen = choose_frame(frames, root)
    if chosen is None:
        return ""
    line = name_line(chosen, root)
    return f"{line.file}:{line.line}"
