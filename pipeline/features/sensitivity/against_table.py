"""The lines that `doit sensitivity --against` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.cli.columns import columns
from pipeline.features.sensitivity.table import format_spread, show
from pipeline.store.errors import listed, plural

_MOST_NAMED = 3  # named modules of a group
_MOST_KINDS = 5  # named kinds of operators without a build


def describe_against(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the costs of leaving groups of modules to another backend, and the conclusion."""
    against = record["against"]
    backend, metric = against["backend"], against["metric"]
    for name, method in against["methods"].items():
        title = f"{record['package']}/{name}"
        yield f"{title}: against {backend}, on {plural(method['calls'], 'example')}"
        rows: list[Sequence[str]] = [
            (f"on {backend}", "bytes", "ms a call", "SQNR", metric, "")
        ]
        rows += [_make_row(group) for group in method["groups"]]
        rows += [_make_row(row) for row in method["operators"]]
        base = "-" if method["base_ms"] is None else f"{method['base_ms']:g}"
        value = f"{method['metric_value']:.3g}" if metric else ""
        rows.append(
            ("(as it is)", "", base, _format_decibels(method["sqnr_db"]), value, "")
        )
        for line in columns(rows, right=(1, 2, 3, 4)):
            yield f"  {line}".rstrip()
        builds = plural(method["builds"], "build")
        yield f"  {builds} (one by one: {method['one_by_one']})"
        if method["untried"]:
            yield f"  not left to {backend}: {listed(method['untried'], _MOST_KINDS)}"
        yield f"  {_conclude(backend, method)}"


def _make_row(group: Mapping[str, Any]) -> Sequence[str]:
    value = f"{group['metric']:+.3g}" if "metric" in group else ""
    decibels = _format_decibels(group["sqnr_db"])
    size, spread = f"{group['bytes']:+,}", format_spread(group["ms"])
    verdict = group.get("verdict", "")
    return (name_group(group), size, spread, decibels, value, verdict)


def name_group(group: Mapping[str, Any]) -> str:
    """Return the names of a group's modules, the first few of many, or of a kind of operators."""
    if "operator" in group:
        return f"{group['operator']} ({group['count']})"
    modules = group["modules"]
    more = len(modules) - _MOST_NAMED
    if more <= 0:
        return ", ".join(modules)
    return f"{', '.join(modules[:_MOST_NAMED])} and {more} more"


def _format_decibels(decibels: float | None) -> str:
    return "-" if decibels is None else f"{decibels:.1f} dB"


def _conclude(backend: str, method: Mapping[str, Any]) -> str:
    if method["settings"]:
        words = ", ".join(
            f"{name}: {show(value)}" for name, value in method["settings"].items()
        )
        return f"faster with {listed(method['proposed'])} on {backend}: {words}"
    if method["base_ms"] is None:
        return "this machine can't time it: no proposal"
    more = "" if method["complete"] else "; --variants N allows more builds"
    return f"nothing is faster on {backend} without a loss{more}"
