"""Measures the running times of a package's methods and of their source programs on this machine.

A method that takes long to load is timed during its validation, any other one afterwards. Both are
timed from Python, including copies of inputs and outputs. The figures show how a package changed,
not how fast it will be on a device, and other processes on the same cores distort them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median, quantiles
from typing import Any

from torch.export import ExportedProgram

from pipeline.config.validation import ValidateConfig
from pipeline.devices.bindings import Package
from pipeline.devices.interface import PackageFiles
from pipeline.devices.session import EXECUTORCH, Session
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.program.mapped_files import release_pages
from pipeline.program.random_inputs import generate_inputs
from pipeline.program.signature import flatten
from pipeline.report.method_records import LATENCY
from pipeline.run.stages import LOADS, PACKAGE_CALLS, SOURCE_CALLS
from pipeline.validate.budget import Budget
from pipeline.validate.method_result import MethodValidation

# A load or call with its begin and end in seconds, and the method or program that it is about.
TimedStep = tuple[tuple[str, float, float], object]

_MOST_LOADS = 5
# More runs hardly move the median: other load on the machine moves it by far more.
_MOST_RUNS = 60
# Package and source take turns, so that other load on the machine slows both.
_TURNS = 4


def measure_latencies(
    files: PackageFiles,
    validated: Sequence[MethodValidation],
    programs: Mapping[str, ExportedProgram],
    examples: Mapping[str, Sequence[InputSet]],
    settings: ValidateConfig,
    budget: Budget | None = None,
    steps: Sequence[TimedStep] = (),
) -> dict[str, dict[str, Any] | None]:
    """Return the latency of each method, measured for `settings.latency.seconds` or a single run.

    If the `steps` of its validation took longer than that, their times are returned instead.

    It is None for a method that did not pass, that doesn't run on ExecuTorch's runtime, or whose
    source isn't a program, and for all methods if `settings.latency.seconds` is 0. Methods that
    the budget leaves no time for note that in `left_out`.
    """
    seconds = settings.latency.seconds
    session = Session(files)
    latencies: dict[str, dict[str, Any] | None] = {}
    for result in validated:
        name = result.method
        latencies[result.method] = None
        timed = seconds and name in programs and result.ok and result.runs
        if timed and session.choose_device(name) == EXECUTORCH:
            if budget and budget.spent:
                result.left_out.append(LATENCY)
                continue
            generated = generate_inputs(programs[name], 1, settings.seed, [])
            inputs, *_ = (*examples.get(name, ()), *generated)
            latencies[name] = find_latency(
                steps, name, programs[name], seconds
            ) or measure_latency(files, name, programs[name], inputs, seconds)
    return latencies


def find_latency(
    steps: Sequence[TimedStep],
    method: str,
    program: ExportedProgram,
    seconds: float,
) -> dict[str, Any] | None:
    """Return the latency of a method, from the times of its loads and calls in a validation.

    Return None if measuring it takes less time, if there were few calls, or if they may have had
    inputs of different sizes.
    """
    if program.range_constraints:
        return None
    loads: list[float] = []
    firsts: list[float] = []
    steady: list[float] = []
    eager: list[float] = []
    is_first = False
    for (name, begin, end), about in steps:
        duration = end - begin
        # Shorter loads are those of a method that was loaded already.
        if name == LOADS and about == method and duration > seconds / 3:
            loads.append(duration)
            is_first = True
        elif name == PACKAGE_CALLS and about == method:
            (firsts if is_first else steady).append(duration)
            is_first = False
        elif name == SOURCE_CALLS and about is program:
            eager.append(duration)
    del eager[:1]  # slower, like the first call of a package
    if not loads or min(len(steady), len(eager)) < _TURNS:
        return None
    return _describe(loads, firsts, steady, eager)


def _describe(
    loads: Sequence[float],
    firsts: Sequence[float],
    steady: Sequence[float],
    eager: Sequence[float],
) -> dict[str, Any]:
    """Describe durations in seconds: of loads, and of first, further and the source's calls."""
    return {
        "load_ms": spread(loads),
        "first_ms": round_figure(median(firsts) * 1e3),
        "steady_ms": spread(steady),
        "source_ms": spread(eager),
        "ratio": round_figure(median(steady) / median(eager)),
    }


def measure_latency(
    files: PackageFiles,
    method: str,
    program: ExportedProgram,
    inputs: InputSet,
    seconds: float,
) -> dict[str, Any] | None:
    """Measure one method on one input set, or return None if it fails on that input set.

    The first third of `seconds` goes to opening and loading the package repeatedly, each time
    followed by a first run. Then package and source run in turns. Each step happens at least once.
    A method with state starts each turn from its initial state. A turn ends early if a run fails,
    for example because a cache is full.
    """
    values = flatten(program, inputs)
    loads: list[float] = []
    firsts: list[float] = []
    release_pages()
    try:
        until = time.perf_counter() + seconds / 3
        while not loads or (time.perf_counter() < until and len(loads) < _MOST_LOADS):
            started = time.perf_counter()
            package = Package(files)
            package.load(method)
            loads.append(time.perf_counter() - started)
            firsts += _repeat(partial(package.run, method, values), 0)
        source = Source(program)
        source.run_flat(values)
        steady: list[float] = []
        eager: list[float] = []
        until = time.perf_counter() + seconds
        for turn in range(_TURNS):
            if source.state and turn:
                package = Package(files)
                package.run(method, values)
                source.reset()
                source.run_flat(values)
            steady += _repeat(
                partial(package.run, method, values), seconds / 3 / _TURNS
            )
            eager += _repeat(partial(source.run_flat, values), seconds / 3 / _TURNS)
            if time.perf_counter() > until:  # single runs may take that long
                break
    except Exception:  # the device or torch may refuse the inputs
        return None
    return _describe(loads, firsts, steady, eager)


def _repeat(call: Callable[[], Any], seconds: float) -> list[float]:
    """Call a function repeatedly for `seconds`, at least once, and return each call's duration.

    Ends at the first call that raises, unless it is the first one, which raises.
    """
    durations: list[float] = []
    until = time.perf_counter() + seconds
    while not durations or (
        time.perf_counter() < until and len(durations) < _MOST_RUNS // _TURNS
    ):
        started = time.perf_counter()
        try:
            call()
        except Exception:
            if not durations:
                raise
            break
        durations.append(time.perf_counter() - started)
    return durations


def spread(seconds: Sequence[float]) -> dict[str, Any]:
    """Return the median and quartiles in milliseconds; a single figure is all three."""
    figures = (
        quantiles(seconds, n=4, method="inclusive")
        if len(seconds) > 1
        else [*seconds] * 3
    )
    low, middle, high = (round_figure(figure * 1e3) for figure in figures)
    return {"median": middle, "low": low, "high": high, "runs": len(seconds)}


def round_figure(figure: float) -> float:
    """Round to three significant digits; more would be noise."""
    return float(f"{figure:.3g}")
