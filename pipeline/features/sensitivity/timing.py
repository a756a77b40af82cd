"""Times packages that differ in one module; runs in a separate process.

The packages take turns, so that other load on the machine slows all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median, quantiles
from typing import Any

from pipeline.devices.interface import PackageFiles
from pipeline.devices.session import EXECUTORCH, Session
from pipeline.store.errors import DeviceError

_LEAST_ROUNDS, _MOST_ROUNDS = 11, 301
_SECONDS = 1.0  # per package
Content = tuple[bytes, tuple[bytes, ...]]  # the .pte and the .ptd files of a package


def time_variants(
    contents: Sequence[Content], method: str, values: Sequence[Any]
) -> dict[str, Any]:
    """Return by how many milliseconds a call takes longer in each package than in the first one.

    Args:
        contents: the `.pte` of each package, and its `.ptd` files.
        values: the flat inputs of the method that is called.

    Returns:
        `slower`: for each package but the first, the median over rounds with both quartiles; None
            if this machine's runtime can't run it.
        `base_ms`: the median of the first package, or None.
    """
    calls = [_load(content, method, values) for content in contents]
    first, *variants = calls
    if first is None:
        return {"base_ms": None, "slower": [None] * len(variants)}
    runnable = [call for call in calls if call is not None]
    rounds = _time_rounds(runnable, _SECONDS * len(runnable))
    by_call = iter(list(zip(*rounds, strict=True))[1:])
    base = [durations[0] for durations in rounds]
    slower: list[dict[str, float] | None] = []
    for call in variants:
        if call is None:
            slower.append(None)
        else:
            slower.append(_describe(base, next(by_call)))
    return {"base_ms": _round(median(base)), "slower": slower}


def _load(
    content: Content, method: str, values: Sequence[Any]
) -> Callable[[], Any] | None:
    """Return a function that calls a method, after a first call; None if it can't be called."""
    run = open_method(content, method)
    if run is None:
        return None
    try:
        run(values)
    except DeviceError:
        return None
    return partial(run, values)


def open_method(
    content: Content, method: str
) -> Callable[[Sequence[Any]], list[Any]] | None:
    """Return a function that runs a package's method on flat inputs, from its initial state.

    Returns None if this machine's runtime can't run it.
    """
    pte, ptds = content
    session = Session(PackageFiles(f"{method}.pte", pte, ptds))
    try:
        if session.choose_device(method) != EXECUTORCH:
            return None
        session.load(method)
    except DeviceError:
        return None
    return partial(session.run, method)


def _time_rounds(
    calls: Sequence[Callable[[], Any]], seconds: float
) -> list[tuple[float, ...]]:
    """Return the milliseconds of each call in each round; each round begins with another call."""
    rounds: list[tuple[float, ...]] = []
    until = time.perf_counter() + seconds
    while len(rounds) < _LEAST_ROUNDS or (
        time.perf_counter() < until and len(rounds) < _MOST_ROUNDS
    ):
        durations = [0.0] * len(calls)
        for step in range(len(calls)):
            place = (step + len(rounds)) % len(calls)
            started = time.perf_counter()
            calls[place]()
            durations[place] = (time.perf_counter() - started) * 1e3
        rounds.append(tuple(durations))
    return rounds


def _describe(base: Sequence[float], durations: Sequence[float]) -> dict[str, float]:
    """Return the median and quartiles of the differences in each round, in milliseconds."""
    differences = []
    for before, after in zip(base, durations, strict=True):
        differences.append(after - before)
    low, middle, high = quantiles(differences, n=4, method="inclusive")
    return {"median": _round(middle), "low": _round(low), "high": _round(high)}


def _round(milliseconds: float) -> float:
    """Round to a tenth of a microsecond, and larger figures to three significant digits."""
    return round(float(f"{milliseconds:.3g}"), 4)
