"""The figures of a trial by name, read from its manifest, contents.json and report.

Sizes are in bytes, latencies in milliseconds, SQNR in dB, shares from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.moments import call_all
from pipeline.report.formatting import decibel, error, milliseconds, percent
from pipeline.report.records import MOST_SQNR, read_fitting
from pipeline.store.errors import PipelineError
from pipeline.store.files import MANIFEST, REPORT
from pipeline.store.sizes import human_size

Json = Mapping[str, Any]
# The figures that have names of their own, with the better direction.
DIRECTIONS: Mapping[str, str] = MappingProxyType(
    {
        "size": "min",
        "delegated_nodes": "max",
        "delegated_ops": "max",
        "planned_memory": "min",
        "sqnr": "max",
        "max_abs": "min",
        "latency": "min",
    }
)
# The figures that a package has before it is validated.
CHEAP = ("size", "delegated_nodes", "delegated_ops", "planned_memory")
_ACCURACY = ("sqnr", "max_abs")
# The figures of devices, with their paths in a method's record of a device.
ON_DEVICE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "latency": ("run_ms",),
        "latency_p95": ("p95_ms",),
        "load_time": ("load_ms",),
        "peak_memory": ("memory", "peak"),
    }
)
_TIMES = ("latency", "latency_p95", "load_time")
CHOSEN, HELD_OUT = 0, 1  # the halves of the input sets, and of a metric's samples
_METRICS = "metrics"


def split_limit(name: str) -> tuple[str, str]:
    """Return the side of a limit, `min` or `max`, and its figure; "" and the name for others."""
    side, _, figure = name.partition("_")
    if side in ("min", "max"):
        return side, figure
    return "", name


def is_time(name: str) -> bool:
    """Return whether a figure is measured by a clock, which other work on the machine disturbs."""
    return name.partition(".")[0] in _TIMES


def read_figures(folder: Path, names: Sequence[str]) -> dict[str, float]:
    """Return the named figures that the records of a package have.

    Accuracy is measured on the first half of the input sets, if there are several, and metrics on
    the first half of their samples. Raises PipelineError without the feature that reads figures.
    """
    build = _read_build(folder / MANIFEST)
    if build is None:
        return {}
    report = _read_report(folder)
    values = {}
    for name in names:
        value = _find_figure(name, build["figures"], report)
        if value is not None:
            values[name] = float(value)
    return values


def _read_build(manifest: Path) -> Json | None:
    for build in call_all("read_build", manifest):
        return build  # type: ignore[no-any-return]
    lack = 'this installation has no feature "gates", which reads the figures of builds'
    raise PipelineError(lack)


def read_held_out(folder: Path, names: Sequence[str]) -> dict[str, float]:
    """Return the accuracy of a package on the second half of its input sets, by figure.

    The figures are errors of outputs, and values and drops of metrics. The mapping is empty if the
    package was validated on only one set.
    """
    report = _read_report(folder)
    values = {}
    for name in names:
        kind, _, metric = name.partition(".")
        value = None
        if name in _ACCURACY:
            value = _find_accuracy(name, report, HELD_OUT)
        elif kind == _METRICS:
            value = _find_metric(metric, report, HELD_OUT)
        if value is not None:
            values[name] = value
    return values


def find_faults(folder: Path) -> list[str]:
    """Return why the report of a package calls it failed; an empty list if it doesn't."""
    report = _read_report(folder)
    if report.get("verdict") != "failed":
        return []
    return list(report["failures"][:1]) or ["its validation failed"]


def list_unjudged(folder: Path) -> Iterator[str]:
    """Yield why the report of a package leaves methods unjudged, a sentence for each verdict."""
    for method in _read_report(folder).get("methods", ()):
        for part in (method, method.get("quantization"), method.get("reference")):
            if part and part.get("verdict") == "not judged":
                reason = part.get("reason") or part.get("verdict_reason")
                yield f"{method['method']} is not judged: {reason}"


def _read_report(folder: Path) -> dict[str, Any]:
    """Return the report of a package; {} if there is none, or if it describes other files."""
    report = read_fitting(folder / REPORT)
    manifest = read_fitting(folder / MANIFEST)
    if report is None or manifest is None:
        return {}
    digests = {name: file["digest"] for name, file in manifest["files"].items()}
    if report.get("files", digests) != digests:
        return {}
    return report


def _find_figure(name: str, figures: Json, report: Json) -> float | None:
    methods = figures["methods"].values()
    if name == "size":
        return float(figures["size"])
    if name in ("delegated_nodes", "delegated_ops"):
        noun = "nodes" if name == "delegated_nodes" else "operators"
        whole = sum(method[noun] for method in methods)
        delegated = sum(method[f"delegated_{noun}"] for method in methods)
        return delegated / whole if whole else 1.0
    if name == "planned_memory":
        sizes = [method["planned_memory"] for method in methods]
        return max((size for size in sizes if size is not None), default=None)
    if name == "latency":
        times = [method["latency"]["median"] for method in methods if method["latency"]]
        return sum(times) if times else None
    if name in _ACCURACY:
        return _find_accuracy(name, report, CHOSEN)
    kind, _, device = name.partition(".")
    if kind in ON_DEVICE:
        return _find_on_device(kind, device, report)
    if kind == _METRICS:
        return _find_metric(device, report, CHOSEN)
    return _find_in_record(report, name.split("."))


def _find_accuracy(name: str, report: Json, half: int) -> float | None:
    """Return the worst SQNR in dB, or the greatest absolute error, over the outputs of all methods.

    Only one half of their input sets counts.
    """
    values: list[float] = []
    field = "sqnr_db" if name == "sqnr" else name
    for method in report.get("methods", ()):
        for output in _list_outputs(method, half):
            if output.get(field) is not None:  # infinities are strings
                values.append(float(output[field]))
    if not values:
        return None
    if name == "sqnr":
        return min(MOST_SQNR, *values)
    return max(values)


def _list_outputs(method: Json, half: int) -> Iterator[Json]:
    """Yield the errors of a method's outputs on one half of its input sets.

    The input sets are the examples, if there are any, else the random ones. A single set belongs to
    the first half.
    """
    usual = [run for run in method["runs"] if not run.get("case")]
    examples = [run for run in usual if not run.get("generated")]
    origins = list(dict.fromkeys(run["origin"] for run in examples or usual))
    # Every other origin, so that both halves have some of each part of a recording.
    chosen = set(origins[half::2])
    for run in usual:
        if run["origin"] in chosen:
            yield from run["outputs"]


def _find_on_device(kind: str, device: str, report: Json) -> float | None:
    """Return the sum of the methods' times on a device, or their greatest memory."""
    values = []
    for method in report.get("methods", ()):
        record = (method.get("devices") or {}).get(device) or {}
        value = _find_in_record(record, ON_DEVICE[kind])
        if value is not None:
            values.append(value)
    if not values:
        return None
    if kind == "peak_memory":
        return max(values)
    return sum(values)


def _find_metric(name: str, report: Json, half: int) -> float | None:
    """Return a metric's value from the first method that has it, on one half of its samples.

    A name that ends in another fact of the metric, such as its `drop` against the source, gives
    that fact. Names of metrics may contain dots. A fact that isn't measured on halves counts on the
    first one.
    """
    entry, _, fact = name.rpartition(".")
    for method in report.get("methods", ()):
        metrics = method.get("metrics") or {}
        if name in metrics:
            entry, fact = name, "value"
        if entry in metrics:
            halves = metrics[entry].get("halves")
            if halves and fact in halves[half]:
                return float(halves[half][fact])
            if half == HELD_OUT:
                return None
            return _find_in_record(metrics[entry], [fact])
    return None


def _find_in_record(record: Any, path: Sequence[str]) -> float | None:
    """Return the number at a path of a record, or None.

    Members of lists are found by their `method` or `name`; a figure with further facts has its
    number in `value`.
    """
    for key in path:
        if isinstance(record, list):
            names = {
                str(member.get("method", member.get("name"))): member
                for member in record
                if isinstance(member, Mapping)
            }
            record = names.get(key)
        elif isinstance(record, Mapping):
            record = record.get(key)
        else:
            return None
    if isinstance(record, Mapping):
        record = record.get("value")
    if isinstance(record, int | float):
        return float(record)
    return None


def format_figure(name: str, value: float | None) -> str:
    """Format a figure with its unit."""
    kind = name.partition(".")[0]
    if value is None:
        return error(None)
    if kind in ("size", "planned_memory", "peak_memory"):
        return human_size(value)
    if kind in ("delegated_nodes", "delegated_ops"):
        return percent(value)
    if kind == "sqnr":
        return decibel(value)
    if kind in _TIMES:
        return milliseconds(value)
    return error(value)
