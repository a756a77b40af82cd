"""Runs a metric of the workspace in its own process, on a package or on its source.

The metric's data goes through methods call by call, and their outputs through its function.

A metric's file has `data(method)`, which yields pairs of inputs and label, and
`metric(outputs, labels)`, which takes lists of both and returns a number or a dict of numbers. It
may have `predict(package, inputs)`, which returns the output for one sample and may call any
methods to compute it.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import safetensors.torch
import torch
from blake3 import blake3

from pipeline.features.metrics.calls import CallServer, PackageMethods
from pipeline.features.metrics.intervals import LEAST_SAMPLES
from pipeline.features.metrics.metric_files import FOLDER, MODELS, find_path
from pipeline.program.fresh_imports import importing_from_text
from pipeline.program.inputs import InputSet, describe_type, save_inputs
from pipeline.program.workspace_modules import add_package, load_file, own_name
from pipeline.store.errors import PipelineError, SourceError, listed

Json = dict[str, Any]
Metric = Callable[[Sequence[Any], Sequence[Any]], Mapping[str, float]]
_RESAMPLES = 400
_SEED = 0
_ALMOST = 1e-6  # relative; rounding to float32 changes a mean of scores by less
_PAIR = "must be a tuple of inputs and label"
_NUMBERS = "must be a finite number, or a dict of such numbers by name"


def score(
    root: Path, file: str, calls: CallServer, method: str | None, samples: int
) -> Json:
    """Run a metric in this process, which runs nothing else, and return its scores as JSON.

    Args:
        calls: the methods of the package or of its source.
        method: the method that runs the inputs if the file has no `predict`.
        samples: the maximum number of samples to run.

    Returns:
        `samples`, the number of samples run; `more`, whether there are others; `data`, a digest of
        the inputs that were run; `methods`, the names of the methods called; `opened`, the files
        read; and `values`. By name, these have the `value`; its values on the two `halves` of the
        samples, each None if it has none; the `scores` of single samples, or None if their mean
        isn't the value; the values of `resampled` data, which is drawn alike for all packages; and
        the value if all samples had the first one's output (`still`), or None if it has none.

    Raises:
        SourceError: the file isn't a valid metric; the message says what is missing or wrong.
    """
    # Start before any workspace code runs, or its first reads would go unnoticed.
    opened = _watch_files()
    os.chdir(root)
    torch.set_num_threads(1)  # the parent's threads don't exist in this fork
    sys.dont_write_bytecode = True
    sys.path.append(str(root))
    where = f"{FOLDER}/{file}.py"
    prefix = f"{root}{os.sep}"
    with importing_from_text(lambda path: path.startswith(prefix)):
        for folder in (MODELS, FOLDER):
            add_package(root / folder)
        path = find_path(root, file)
        module = load_file(path, own_name(FOLDER, path))
        outputs, labels, more, data = _run(module, where, calls, method, samples)
        metric = partial(_measure, module, where)
        values = _score_values(metric, outputs, labels)
    return {
        "samples": len(outputs),
        "more": more,
        "data": data,
        "methods": sorted(calls.called),
        "opened": sorted(opened),
        "values": values,
    }


def _watch_files() -> set[str]:
    """Return a set that collects the absolute path of each file opened for reading from now on.

    Paths come from Python's audit events and, for native code that raises none, from wrappers.
    """
    opened: set[str] = set()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str):
            return
        path, mode, flags = arguments
        writes = flags & os.O_ACCMODE == os.O_WRONLY or "w" in (mode or "")
        if not writes and os.path.isfile(path):
            opened.add(os.path.abspath(path))

    sys.addaudithook(note)
    # `safetensors.torch` imports the function by name, so it holds a second reference to it.
    for module in (safetensors, safetensors.torch):
        setattr(module, "safe_open", _note_first(safetensors.safe_open, opened))  # noqa: B010
    torch.from_file = _note_first(torch.from_file, opened)
    return opened


def _note_first(function: Callable[..., Any], opened: set[str]) -> Callable[..., Any]:
    """Wrap a function to record its first argument, a path that native code opens.

    Native code opens it without an audit event. Remove this once safetensors and torch raise one.
    """

    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        opened.add(os.path.abspath(os.fspath(path)))
        return function(path, *args, **kwargs)

    return call


def _run(
    module: ModuleType,
    where: str,
    calls: CallServer,
    method: str | None,
    samples: int,
) -> tuple[list[Any], list[Any], bool, str]:
    """Run the samples of a metric.

    Returns:
        Their outputs, their labels, whether there are more samples, and the digest of their inputs.
    """
    for name, form in (("metric", "(outputs, labels)"), ("data", "(method)")):
        if not callable(getattr(module, name, None)):
            raise SourceError(f"{where}: has no function {name}{form}")
    predict = getattr(module, "predict", None)
    if predict is None and method is None:
        methods = listed(calls.methods)
        remedy = f"set `method` in validate.metrics, or define predict(package, inputs) in {where}"
        raise SourceError(f"{where}: the package has the methods {methods}; {remedy}")
    package = PackageMethods(calls)
    hasher = blake3()
    outputs: list[Any] = []
    labels: list[Any] = []
    pairs = _iterate(module.data(method), where)
    for number, (inputs, label) in enumerate(islice(pairs, samples)):
        hasher.update(_hashable(inputs))
        calls.begin_sample()
        try:
            if predict is not None:
                output = predict(package, inputs)
            else:
                output = _call(package[str(method)], inputs)
        except PipelineError as error:
            raise SourceError(f"{where}: sample {number}: {error}") from error
        outputs.append(output)
        labels.append(label)
    if not outputs:
        raise SourceError(f"{where}: data({method!r}) yields no samples")
    # Ask for one more pair only: `data` may never end.
    more = len(outputs) == samples and next(pairs, None) is not None
    return outputs, labels, more, hasher.hexdigest()


def _iterate(data: Any, where: str) -> Iterator[tuple[Any, Any]]:
    try:
        iterator = iter(data)
    except TypeError:
        fault = f"data returns {describe_type(data)}, must be an iterable"
        raise SourceError(f"{where}: {fault} of (inputs, label)") from None
    for number, pair in enumerate(iterator):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            fault = f"sample {number} is {describe_type(pair)}, {_PAIR}"
            raise SourceError(f"{where}: data: {fault}")
        yield pair[0], pair[1]


def _call(method: Callable[..., Any], inputs: Any) -> Any:
    if isinstance(inputs, tuple):
        return method(*inputs)
    if isinstance(inputs, dict):
        return method(**inputs)
    return method(inputs)


def _hashable(inputs: Any) -> bytes:
    """Return inputs as bytes, or b"" if only `predict` understands them.

    Objects of a library, for example, can't be serialized here.
    """
    try:
        return save_inputs([InputSet((inputs,))])
    except PipelineError:
        return b""


def _score_values(metric: Metric, outputs: list[Any], labels: list[Any]) -> Json:
    values = metric(outputs, labels)
    scores = _score_samples(metric, outputs, labels)
    means: dict[str, list[float]] = {}
    for name, value in values.items():
        of_samples = [sample[name] for sample in scores if name in sample]
        if len(of_samples) == len(outputs) and _is_mean(value, of_samples):
            means[name] = of_samples
    resampled = _resample(metric, outputs, labels, values.keys(), means)
    halves = [_measure_half(metric, outputs, labels, half) for half in range(2)]
    still = _measure_still(metric, outputs, labels)
    return {
        name: {
            "value": value,
            "halves": [half.get(name) for half in halves],
            "scores": means.get(name),
            "resampled": resampled[name],
            "still": still.get(name),
        }
        for name, value in values.items()
    }


def _score_samples(
    metric: Metric, outputs: list[Any], labels: list[Any]
) -> list[Mapping[str, float]]:
    """Return the metric of each sample alone, or an empty list if any sample has none."""
    scores = []
    for output, label in zip(outputs, labels, strict=True):
        try:
            scores.append(metric([output], [label]))
        except Exception:  # such as a correlation, which needs several samples
            return []
    return scores


def _measure_half(
    metric: Metric, outputs: list[Any], labels: list[Any], half: int
) -> Mapping[str, float]:
    """Return the metric of every other sample, or an empty dict if it has none.

    Whoever chooses a package by one half can check the choice on the other.
    """
    if len(outputs) <= half:
        return {}
    try:
        return metric(outputs[half::2], labels[half::2])
    except Exception:  # such as a correlation, which needs several samples
        return {}


def _measure_still(
    metric: Metric, outputs: list[Any], labels: list[Any]
) -> Mapping[str, float]:
    """Return the metric of a package that ignores its inputs, or an empty dict if it has none.

    A limit that it would meet shows nothing.
    """
    try:
        return metric(outputs[:1] * len(outputs), labels)
    except Exception:  # such as a correlation with a constant
        return {}


def _is_mean(value: float, scores: Sequence[float]) -> bool:
    mean = math.fsum(scores) / len(scores)
    return math.isclose(mean, value, rel_tol=_ALMOST, abs_tol=1e-9)


def _resample(
    metric: Metric,
    outputs: list[Any],
    labels: list[Any],
    names: Any,
    means: Mapping[str, Sequence[float]],
) -> dict[str, list[float | None]]:
    """Return each value on bootstrap draws: samples drawn with replacement.

    The draws are the same for every package that runs as many samples. A value that is a mean is
    computed from the drawn scores. A draw without a value, such as one of a single class, gives
    None. The lists are empty if there are too few samples.
    """
    number = len(outputs)
    resampled: dict[str, list[float | None]] = {name: [] for name in names}
    if number < LEAST_SAMPLES:
        return resampled
    # Named explicitly, since numpy may change `default_rng`'s generator: draws must stay the same.
    generator = numpy.random.Generator(numpy.random.PCG64(_SEED))
    scores = {name: numpy.asarray(values) for name, values in means.items()}
    for _ in range(_RESAMPLES):
        drawn = generator.integers(0, number, number)
        values = {name: float(array[drawn].mean()) for name, array in scores.items()}
        if len(values) < len(resampled):
            drawn_outputs = [outputs[place] for place in drawn]
            drawn_labels = [labels[place] for place in drawn]
            with suppress(Exception):
                values = {**metric(drawn_outputs, drawn_labels), **values}
        for name in resampled:
            resampled[name].append(values.get(name))
    return resampled


def _measure(
    module: ModuleType, where: str, outputs: Sequence[Any], labels: Sequence[Any]
) -> dict[str, float]:
    """Return the values of a metric by name; the name is "" if it returns a single number."""
    result = module.metric(list(outputs), list(labels))
    values = result if isinstance(result, dict) else {"": result}
    checked = {}
    for name, value in values.items():
        number = _find_number(value)
        if number is None:
            got = value if isinstance(value, float) else describe_type(value)
            if isinstance(result, dict):
                fault = f"value '{name}' of metric is {got}, must be a finite number"
            else:
                fault = f"metric returns {got}, {_NUMBERS}"
            raise SourceError(f"{where}: {fault}")
        checked[str(name)] = number
    if not checked:
        raise SourceError(f"{where}: metric returns an empty dict, must hold a number")
    return checked


def _find_number(value: Any) -> float | None:
    """Return a number, or the one in a tensor or array of one element; None for anything else."""
    item = getattr(value, "item", None)
    if callable(item):
        try:
            value = item()
        except (RuntimeError, ValueError):  # it has several elements
            return None
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
