"""The lines that `doit sensitivity` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.cli.columns import columns
from pipeline.store.errors import listed, plural
from pipeline.store.sizes import human_size

_MOST_NAMED = 3  # named modules of a build
_MOST_QUIET = 8  # maximum rows for modules that stay quantized
_ITSELF = "(its own operators)"


def describe_method(title: str, method: Mapping[str, Any]) -> Iterator[str]:
    """Yield the cost of quantizing each module and kind of operator of a method.

    Args:
        title: the package and the method, as `package/method`.
    """
    calls = plural(method["calls"], "example")
    yield f"{title}: SQNR {method['sqnr_db']:.1f} dB quantized, the worst output of {calls}"
    rows: list[Sequence[str]] = [("module", "SQNR alone", "noise", "saves", "")]
    shown = [row for row in method["modules"] if row["chosen"]]
    shown += [row for row in method["modules"] if not row["chosen"]][:_MOST_QUIET]
    for row in shown:
        rows.append(
            (
                row["module"] or _ITSELF,
                _format_decibels(row),
                f"{row['share']:.1%}",
                human_size(row["saved_bytes"]),
                _describe_choice(row, method),
            )
        )
    yield from _indent(rows)
    if len(method["operators"]) > 1:
        rows = [("operator", "SQNR alone", "calls", "saves")]
        for row in method["operators"]:
            saved = human_size(row["saved_bytes"])
            rows.append(
                (row["operator"], _format_decibels(row), str(row["count"]), saved)
            )
        yield from _indent(rows)
    if left_out := len(method["modules"]) - len(shown):
        yield f"  and {plural(left_out, 'quieter module')}"
    ranked = ""
    if method["gradients"]:
        ranked = f" and {plural(method['gradients'], 'gradient')} of a call"
    yield from _describe_variants(method)
    one_by_one = plural(method["one_by_one"], "run")
    yield f"  {plural(method['runs'], 'run')}{ranked} (one by one: {one_by_one})"
    yield f"  {_conclude(method)}"


def _format_decibels(row: Mapping[str, Any]) -> str:
    sign = "" if row.get("measured", True) else "~"
    return f"{sign}{row['sqnr_db']:.1f} dB"


def _describe_choice(row: Mapping[str, Any], method: Mapping[str, Any]) -> str:
    if not row["module"]:
        return "in no module"
    if not row["chosen"]:
        return ""
    return "keep in float" if method["overrides"] else "noisiest"


def _indent(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for line in columns(rows, right=(1, 2, 3)):
        yield f"  {line}".rstrip()


def _describe_variants(method: Mapping[str, Any]) -> Iterator[str]:
    """Yield the costs and gains of the package with each module alone in float."""
    tried = [row for row in method["modules"] if "in_float" in row]
    if not tried:
        return
    metric = method.get("metric", "")
    rows: list[Sequence[str]] = [("in float", "bytes", "ms a call", metric)]
    for row in tried:
        change = row["in_float"]
        value = f"{change['metric']:+.3g}" if "metric" in change else ""
        size = f"{change['bytes']:+,}"
        rows.append((row["module"], size, format_spread(change["ms"]), value))
    base = "-" if method["base_ms"] is None else f"{method['base_ms']:g}"
    value = f"{method['metric_value']:.3g}" if metric else ""
    rows.append(("(all quantized)", "", base, value))
    yield from _indent(rows)


def format_spread(spread: Mapping[str, float] | None) -> str:
    """Format a difference of times, with "even" if its quartiles are on both sides of zero."""
    if spread is None:
        return "-"
    even = " (even)" if spread["low"] <= 0 <= spread["high"] else ""
    return f"{spread['median']:+g}{even}"


def describe_metric(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the scores of the packages that were built for a metric, and the conclusion."""
    search = record["metric"]
    name, before = search["name"], f"{search['value']:.3g}"
    state = search["verdict"] or "without a limit"
    yield f"{record['package']}: {name} {before}, all quantized: {state}"
    rows: list[Sequence[str]] = [("in float", "bytes", name, "")]
    for row in search["tried"]:
        size, value = f"{row['bytes']:+,}", f"{row['value']:.3g}"
        rows.append((_name_kept(row["kept"]), size, value, row["verdict"]))
    if search["tried"]:
        yield from _indent(rows)
        builds = plural(search["builds"], "build")
        yield f"  {builds} (one by one: {search['one_by_one']})"
    yield f"  {_conclude_metric(search)}"


def _name_kept(kept: Mapping[str, Sequence[str]]) -> str:
    """Return the names of modules, the first few of many, with their methods if several."""
    names = []
    for method, modules in kept.items():
        prefix = f"{method}/" if len(kept) > 1 else ""
        names += [f"{prefix}{module}" for module in modules]
    more = len(names) - _MOST_NAMED
    if more <= 0:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST_NAMED])} and {more} more"


def _conclude_metric(search: Mapping[str, Any]) -> str:
    name = search["name"]
    if not search["verdict"]:
        return f"no limit to reach: add `min` or `max_drop` to validate.metrics.{name}"
    if search["kept"]:
        spent = (
            ""
            if search["complete"]
            else "; the budget was exhausted, so the list may be longer than needed"
        )
        return f"keep in float for {name}: {_name_kept(search['kept'])}{spent}"
    if search["reached"]:
        return "already passes: nothing to keep in float"
    if not search["complete"]:
        return "the budget was exhausted: no proposal; raise it with --budget SECONDS"
    return f"can't be reached by `modules`: {search['sentence']}"


def _conclude(method: Mapping[str, Any]) -> str:
    """Return the conclusion from the probes, which is only a prediction."""
    floor = method["floor_db"]
    if not method["complete"]:
        return "the budget was exhausted: no proposal; raise it with --budget SECONDS"
    if floor is None and method["overrides"]:
        return "proposed by the metric, below"
    if floor is None:
        return "no floor to reach: give --floor DB, or `min_sqnr` in the config"
    if method["sqnr_db"] >= floor:
        return f"reaches {floor:g} dB already: nothing to keep in float"
    if not method["reached"]:
        return (
            f"can't reach {floor:g} dB by `modules`: the noise comes from operators outside "
            "modules; see `operators` of `quantize`"
        )
    if not method["kept"]:
        return f"only float reaches {floor:g} dB: set a lower floor, or leave `quantize` out"
    names = listed(method["kept"])
    return f"keep in float for {floor:g} dB: {names}; expected {method['expected_db']:.1f} dB"


def describe_verification(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the results of the package that was built with the proposal."""
    verified = record["verified"]
    if verified is None:
        return
    for name, figures in verified["methods"].items():
        method = record["methods"][name]
        if method["overrides"]:
            yield (
                f"{record['package']}/{name}: quantized so, SQNR {figures['sqnr_db']:.1f} dB on "
                f"{plural(figures['calls'], 'example')} (was {method['sqnr_db']:.1f})"
                f"{_compare_floor(figures['sqnr_db'], method['floor_db'])}"
            )
            for kind, members in method["overrides"].items():
                yield f"  {kind}: {show(members)}"
    before, after = record["bytes"], verified["bytes"]
    sizes = f"{human_size(before)} -> {human_size(after)}"
    yield f"{record['package']}: {sizes} ({after - before:+,} bytes)"


def _compare_floor(sqnr: float, floor: float | None) -> str:
    if floor is None:
        return ""
    return f": {floor:g} dB {'reached' if sqnr >= floor else 'NOT reached'}"


def show(value: Any) -> str:
    """Format a setting as in a config."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{key}: {show(inner)}" for key, inner in value.items())
        return f"{{{pairs}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(show, value))}]"
    if isinstance(value, str) and value.startswith("!"):
        return f"'{value}'"  # otherwise YAML takes it for a tag
    return str(value).lower() if isinstance(value, bool) else str(value)
