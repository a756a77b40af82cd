"""Measures how long the methods of a package take on this machine, beside their source programs.

Both are timed from Python, copies of inputs and outputs included. The figures show how a package
changed, not how long a device will take; another process on the same cores is in them.
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
from pipeline.validate.budget import Budget
from pipeline.validate.method_result import MethodValidation

_MOST_LOADS = 5
_MOST_RUNS = 1000
# Package and source take turns, so that whatever else the machine does slows both.
_TURNS = 4


def measure_latencies(
    files: PackageFiles,
    validated: Sequence[MethodValidation],
    programs: Mapping[str, ExportedProgram],
    examples: Mapping[str, Sequence[InputSet]],
    settings: ValidateConfig,
    budget: Budget | None = None,
) -> dict[str, dict[str, Any] | None]:
    """Measure methods, for `settings.latency.seconds` each, or as long as a single run takes; those
    for which there is no time leave out their latency.

    It is None for a method that did not pass, that another device than ExecuTorch's runtime runs,
    or whose source is no program; for all where the settings leave no time.
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
            latencies[name] = measure_latency(
                files, name, programs[name], inputs, seconds
            )
    return latencies


def measure_latency(
    files: PackageFiles,
    method: str,
    program: ExportedProgram,
    inputs: InputSet,
    seconds: float,
) -> dict[str, Any] | None:
    """Measure one method on one input set; None where it fails on that.

    A third of `seconds` goes to opening and loading the package anew, with a first run each time;
    then package and source run in turns. Everything happens once at least.
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
    except Exception:  # what the device or torch says of inputs that it can't take
        return None
    steady: list[float] = []
    eager: list[float] = []
    until = time.perf_counter() + seconds
    for _ in range(_TURNS):
        steady += _repeat(lambda: package.run(method, values), seconds / 3 / _TURNS)
        eager += _repeat(lambda: source.run_flat(values), seconds / 3 / _TURNS)
        if time.perf_counter() > until:  # where single runs take that long
            break
    return {
        "load_ms": spread(loads),
        "first_ms": round_figure(median(firsts) * 1e3),
        "steady_ms": spread(steady),
        "source_ms": spread(eager),
        "ratio": round_figure(median(steady) / median(eager)),
    }


def _repeat(call: Callable[[], Any], seconds: float) -> list[float]:
    """Call until the time is over, once at least, and return how long each call took."""
    durations: list[float] = []
    until = time.perf_counter() + seconds
    while not durations or (
        time.perf_counter() < until and len(durations) < _MOST_RUNS // _TURNS
    ):
        started = time.perf_counter()
        call()
        durations.append(time.perf_counter() - started)
    return durations


def spread(seconds: Sequence[float]) -> dict[str, Any]:
    """Return median and quartiles in milliseconds; those of a single figure are that figure."""
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
