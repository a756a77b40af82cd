"""The task metrics of a model card: scores of the package and its source on the same samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.report.formatting import NOTHING, short

Json = Mapping[str, Any]
HEAD = (
    "metric",
    "methods",
    "package",
    "95 % interval",
    "source",
    "drop",
    "95 % interval",
    "samples",
)


def list_metrics(report: Json) -> list[Sequence[str]]:
    """Return a row of `HEAD` for each value of a metric, however many limits apply to it.

    Metrics that were not run have no row. An interval is unknown (None) for a metric that gives one
    value for all samples, for example.
    """
    rows: dict[tuple[str, str], Sequence[str]] = {}
    for record in report.get("metrics") or ():
        if record.get("value") is None:
            continue
        methods = ", ".join(record.get("methods") or [record["method"]])
        rows[record["metric"], methods] = (
            record["metric"],
            methods,
            *_describe_value(record, "value", "interval"),
            _round(record.get("source")),
            *_describe_value(record, "drop", "drop_interval"),
            str(record.get("samples", NOTHING)),
        )
    return [rows[key] for key in sorted(rows)]


def _describe_value(record: Json, name: str, interval_name: str) -> Iterator[str]:
    """Yield a value and its interval."""
    yield _round(record.get(name))
    interval = record.get(interval_name)
    yield " to ".join(map(_round, interval)) if interval else NOTHING


def _round(value: float | None) -> str:
    return NOTHING if value is None else short(float(f"{value:.3g}"))
