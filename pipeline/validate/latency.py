"""How long the methods of a package take on this machine, beside their source programs.

Measured from Python through ExecuTorch's runtime, copies of inputs and outputs included, as the
source program in eager mode is. It is what a change of a package is told by, not what a device will
take. The figures are those of one moment: another process on the same cores is in them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any, Protocol

from torch.export import ExportedProgram

from pipeline.devices.executorch import open_package
from pipeline.devices.interface import PackageFiles
from pipeline.devices.session import EXECUTORCH, Session
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import generate_inputs
from pipeline.program.signature import flatten
from pipeline.report.records import LatencyRecord, SpreadRecord
from pipeline.validate.results import MethodValidation

_MOST_LOADS = 5
_MOST_RUNS = 1000
# Package and source take turns, so that what else the machine does meets both.
_TURNS = 4
_DIGITS = 3


class Settings(Protocol):
    """`latency.seconds` are spent on each method, more where single runs take longer; 0 measures
    nothing. `seed` is what inputs are generated from where a method has no examples."""

    @property
    def seed(self) -> int: ...
    @property
    def latency(self) -> Budget: ...


class Budget(Protocol):
    @property
    def seconds(self) -> float: ...


def latencies(
    files: PackageFiles,
    validated: Sequence[MethodValidation],
    programs: Mapping[str, ExportedProgram],
    examples: Mapping[str, Sequence[InputSet]],
    settings: Settings,
) -> dict[str, LatencyRecord | None]:
    """By method. None for one that did not pass, that another device than ExecuTorch's runtime
    runs, or whose source is no program; for all where `settings` leaves no time."""
    seconds = settings.latency.seconds
    session = Session(files)
    found: dict[str, LatencyRecord | None] = {}
    for each in validated:
        name = each.method
        timed = seconds and name in programs and each.ok and each.runs
        if timed and session.device_of(name).type == EXECUTORCH:
            program = programs[name]
            sets = [*examples.get(name, ()), *generate_inputs(program, 1, settings.seed, [])]
            found[name] = latency_of(files, name, program, sets[0], seconds)
        else:
            found[name] = None
    return found


def latency_of(
    files: PackageFiles, method: str, program: ExportedProgram, inputs: InputSet, seconds: float
) -> LatencyRecord | None:
    """Of one method on one input set; None where it fails on that.

    A third of `seconds` goes to opening and loading the package anew, with a first run each time;
    then package and source run in turns. Everything happens once at least.
    """
    values = flatten(program, inputs)
    loads, firsts = [], []
    try:
        until = time.perf_counter() + seconds / 3
        while True:
            started = time.perf_counter()
            package = open_package(files)
            package.load(method)
            loaded = time.perf_counter()
            package.run(method, values)
            firsts.append(time.perf_counter() - loaded)
            loads.append(loaded - started)
            if time.perf_counter() >= until or len(loads) >= _MOST_LOADS:
                break
        source = Source(program)
        source.run_flat(values)
    except Exception:  # what the device or torch says of inputs that it can't take
        return None
    steady: list[float] = []
    eager: list[float] = []
    for _ in range(_TURNS):
        _repeat(lambda: package.run(method, values), steady, seconds / 3 / _TURNS)
        _repeat(lambda: source.run_flat(values), eager, seconds / 3 / _TURNS)
    return {
        "load_ms": spread(loads),
        "first_ms": rounded(median(firsts) * 1e3),
        "steady_ms": spread(steady),
        "source_ms": spread(eager),
        "ratio": rounded(median(steady) / median(eager)),
    }


def _repeat(call: Callable[[], Any], taken: list[float], seconds: float) -> None:
    """Calls until the time is over, once at least, and adds how long each took."""
    until = time.perf_counter() + seconds
    for _ in range(_MOST_RUNS // _TURNS):
        started = time.perf_counter()
        call()
        ended = time.perf_counter()
        taken.append(ended - started)
        if ended >= until:
            break


def spread(seconds: Sequence[float]) -> SpreadRecord:
    """In milliseconds; quartiles of a single figure are that figure."""
    low = middle = high = seconds[0]
    if len(seconds) > 1:
        low, middle, high = quantiles(seconds, n=4, method="inclusive")
    return {
        "median": rounded(middle * 1e3),
        "low": rounded(low * 1e3),
        "high": rounded(high * 1e3),
        "runs": len(seconds),
    }


def rounded(figure: float) -> float:
    """To so many significant digits; more would be noise."""
    return float(f"{figure:.{_DIGITS}g}")
