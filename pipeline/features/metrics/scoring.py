"""Runs a metric of the workspace in a process of its own: its data go through the package or its
source, call by call, and its function through what they give.

A metric's file has `data(method)`, which yields pairs of inputs and label, and
`metric(outputs, labels)`, which takes lists of both and returns a number or a dict of numbers. It
may have `predict(package, inputs)`, which returns the output of a sample, by any calls of methods.
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
_ALMOST = 1e-6  # relative: float32 rounds a mean of scores by less
_PAIR = "must be a tuple of inputs and label"
_NUMBERS = "must be a finite number, or a dict of such numbers by name"


def score(
    root: Path, file: str, calls: CallServer, method: str | None, samples: int
) -> Json:
    """Run a metric in this process, which is its own, and return its scores as JSON.

    Args:
        calls: the methods of the package, or of its source.
        method: the method that runs the inputs where the file has no `predict`.
        samples: the most samples that are run.

    Returns:
        `samples`, how many were run; `more`, whether there were others; `data`, a digest of their
        inputs; `methods`, those that were called; `opened`, the files that were read; and by name
        in `values`: the `value`, the `scores` of single samples or None where their mean is another
        value, and the values of `resampled` data, which are drawn alike for all packages.

    Raises:
        SourceError: the file is no metric; the message says what is missing or wrong.
    """
    # Before anything of the workspace runs, or what it reads first would go unnoticed.
    opened = _watch_files()
    os.chdir(root)
    torch.set_num_threads(1)  # the threads of this fork's parent are not there
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
    """Return the absolute paths of the files that this process opens to read from now on, as
    Python's audit events name them."""
    opened: set[str] = set()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str):
            return
        path, mode, flags = arguments
        writes = flags & os.O_ACCMODE == os.O_WRONLY or "w" in (mode or "")
        if not writes and os.path.isfile(path):
            opened.add(os.path.abspath(path))

    sys.addaudithook(note)
    # `safetensors.torch` has imported the function by name, so it has a reference of its own.
    for module in (safetensors, safetensors.torch):
        setattr(module, "safe_open", _note_first(safetensors.safe_open, opened))  # noqa: B010
    torch.from_file = _note_first(torch.from_file, opened)
    return opened


def _note_first(function: Callable[..., Any], opened: set[str]) -> Callable[..., Any]:
    """Return a function that notes the file of its first argument, which native code opens without
    an audit event. It can go when safetensors and torch raise one."""

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
    """Return the outputs and labels of the samples, whether there are more, and the digest of their
    inputs."""
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
    # One further pair is asked for, no more: `data` may never end.
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
    """Return the bytes of inputs; none of those that only `predict` understands, such as objects of
    a library."""
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
    return {
        name: {
            "value": value,
            "scores": means.get(name),
            "resampled": resampled[name],
        }
        for name, value in values.items()
    }


def _score_samples(
    metric: Metric, outputs: list[Any], labels: list[Any]
) -> list[Mapping[str, float]]:
    """Return the metric of each sample alone; nothing where one has none."""
    scores = []
    for output, label in zip(outputs, labels, strict=True):
        try:
            scores.append(metric([output], [label]))
        except Exception:  # such as a correlation, which takes several
            return []
    return scores


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
    """Return each value on samples that are drawn with replacement, the same ones for every package
    of as many samples; none where they are too few. Means are drawn by their scores. It is None for
    a draw that has no value, such as one of a single class."""
    number = len(outputs)
    resampled: dict[str, list[float | None]] = {name: [] for name in names}
    if number < LEAST_SAMPLES:
        return resampled
    # By name, since numpy may give `default_rng` another generator: draws must stay the same.
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
    """Return the values of a metric by name, "" for that of one without names."""
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
    """Return a number, also one in a tensor or an array of a single element; None for others."""
    item = getattr(value, "item", None)
    if callable(item):
        try:
            value = item()
        except (RuntimeError, ValueError):  # of several elements
            return None
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
