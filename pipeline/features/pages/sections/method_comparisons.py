"""Rows that compare a method with its source, its float program and a reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pipeline.features.pages.elsewhere import verdict_here
from pipeline.report.cells import figure, name, source, text, verdict_cell
from pipeline.report.elements import Cell, Json, Row
from pipeline.report.formatting import NOTHING, decibel, error, percent, ratio, short
from pipeline.report.references import UNREFERENCED, describe_limits, name_references
from pipeline.store.errors import listed, plural

_LIMITS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "max_mean_abs": ("mean absolute error at most {}", short),
    "max_p999_abs": ("99.9th percentile of the absolute error at most {}", short),
    "max_relative": ("relative error at most {}", short),
    "min_sqnr": ("SQNR at least {} dB", short),
    "min_cosine": ("cosine at least {}", short),
    "min_agreement": (
        "greatest values at the same position in at least {} of rows",
        percent,
    ),
}
# Titles of columns, the figure in each, and the function that formats it.
_FIGURES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "max error": ("max_abs", error),
    "99.9 %": ("p999_abs", error),
    "mean": ("mean_abs", error),
    "relative": ("relative", error),
    "SQNR": ("sqnr_db", decibel),
    "cosine": ("cosine", ratio),
    "agreement": ("agreement", percent),
}


_EXAMPLES, _GENERATED = "examples", "generated inputs"
# Figures that only the table of every call has room for.
_OF_CALLS = ("99.9 %", "relative")
_FEW_ROWS = 100  # from here, a percentage is shown with the counts


def _limit_words(limits: Json) -> Iterator[str]:
    if limits.get("atol") is not None:
        atol = short(limits["atol"])
        rtol = short(limits["rtol"] or 0)
        yield f"absolute error at most {atol} + {rtol} × |expected|"
    for key, (words, style) in _LIMITS.items():
        if limits.get(key) is not None:
            yield words.format(style(limits[key]))


def method_rows(method: Json, places: Mapping[str, str]) -> Iterator[Row]:
    """Yield a row for each comparison of a method.

    The package is compared with the program that it was lowered from and, if that is quantized,
    with the float program; the exported program is compared with its reference. Examples and
    generated inputs have separate rows.
    """
    if method["state"]:
        note = "with state"
    else:
        note = method["kind"]
    href = source(places.get(f"methods.{method['method']}")).href
    head = {"method": name(method["method"], note, href)}
    for comparison in _compare_method(method, places):
        yield {**head, **comparison}


def _compare_method(method: Json, places: Mapping[str, str]) -> Iterator[Row]:
    quantization = method.get("quantization")
    if quantization is None or quantization.get("writers"):
        yield _source_row(method)
    else:
        yield _quantized_row(method)
    if quantization is not None:
        yield _quantization_row(method, quantization)
    if method["kind"] == "program":
        yield _reference_row(method.get("reference"), places)
    generated = method.get("on_generated")
    if generated:
        program = "float program"
        if quantization is None or quantization.get("writers"):
            program = "source"
        calls = _count_calls(method, _GENERATED)
        yield _row({**generated, "limits": {}}, program, calls, "")


def _source_row(method: Json) -> Row:
    """Return the cells that compare a package with the program that it was lowered from."""
    if method.get("examples"):
        inputs = _EXAMPLES
    else:
        inputs = _GENERATED
    row = _row(
        method,
        "source",
        _count_calls(method, inputs),
        verdict_here(method),
    )
    return {**row, "agreement": _agreement(method)}


def _quantized_row(method: Json) -> Row:
    """Return the cells that compare a package with the quantized program it was lowered from."""
    comparison = method.get("quantized")
    if not comparison:
        return _row({"limits": {}}, "quantized program", "", verdict_here(method))
    calls = f"{plural(len(method['runs']), 'call')} on all inputs"
    return _row(comparison, "quantized program", calls, verdict_here(method))


def _count_calls(method: Json, inputs: str) -> str:
    """Return the number of calls of a method on a kind of input, such as `3 calls on examples`."""
    generated = inputs == _GENERATED
    count = sum(bool(run.get("generated")) == generated for run in method["runs"])
    if count:
        return f"{plural(count, 'call')} on {inputs}"
    return ""


def _row(comparison: Json, program: str, calls: str, verdict: str) -> Row:
    """Return the cells of a comparison with a program: its figures and its limits."""
    row: dict[str, Cell | str] = {
        "against": Cell(program, note=calls),
        "verdict": verdict_cell(verdict) if verdict else text(""),
    }
    for title, cell in figure_cells(comparison if calls else {}).items():
        if title not in _OF_CALLS:
            row[title] = cell
    limits = "; ".join(_limit_words(comparison["limits"]))
    row["held to"] = Cell(limits or NOTHING, kind="wide")
    return row


def _quantization_row(method: Json, quantization: Json) -> Row:
    """Return the cells that compare the quantized program with the float one.

    The figures are those on examples; without examples, only the calls and limits are shown.
    """
    examples = quantization["examples"]
    if examples:
        inputs = _EXAMPLES
    else:
        inputs = _GENERATED
    calls = f"no call, {inputs} in eager mode"
    if method["runs"]:
        calls = _count_calls(method, inputs)
    if writers := quantization.get("writers"):
        calls = f"calls after {listed(writers)}, on {inputs}"
    if method["runs"] and examples:
        figures = quantization.get("figures", method)
    else:
        figures = {}
    comparison = {**figures, "limits": quantization["limits"]}
    row = _row(comparison, "float program", calls, quantization["verdict"])
    pools = [pool for pool in examples if pool["rows"]]
    if pools:
        worst = min(pools, key=lambda pool: pool["agreeing"] / pool["rows"])
        row = {**row, "agreement": _count(worst["agreeing"], worst["rows"])}
    return row


def _reference_row(reference: Json | None, places: Mapping[str, str]) -> Row:
    """Return the cells that compare an export with its reference, or say that it has none."""
    about = _describe_comparison(reference)
    if reference is None:
        return _row({"limits": {}}, "no reference", about, "")
    comparison = {"max_abs": reference["max_abs"], "limits": {}}
    row = _row(comparison, "reference", about, reference["verdict"])
    limits = describe_limits(reference, places)
    if limits:
        row = {**row, "held to": Cell(limits, kind="wide")}
    return row


def _describe_comparison(reference: Json | None) -> str:
    """Return what a method's export is compared with, or the words for a missing reference."""
    if reference is None:
        return UNREFERENCED
    return f"{plural(reference['calls'], 'call')} of the export, by {name_references(reference)}"


def figure_cells(record: Json) -> Row:
    cells = {}
    for title, (key, style) in _FIGURES.items():
        cells[title] = figure(record.get(key), style)
    if record.get("rows"):
        cells["agreement"] = _count(record["agreeing"], record["rows"])
    return cells


def _agreement(method: Json) -> Cell:
    """Return how many rows agree, for the output with the lowest agreement.

    All examples count; if there are none, all calls do. A record without these counts gives its
    worst share.
    """
    runs = [run for run in method["runs"] if not run.get("generated")] or method["runs"]
    agreeing: Counter[int] = Counter()
    rows: Counter[int] = Counter()
    for run in runs:
        for place, errors in enumerate(run["outputs"]):
            agreeing[place] += errors.get("agreeing", 0)
            rows[place] += errors.get("rows", 0)
    places = [place for place, count in rows.items() if count]
    if not places:
        return figure(method.get("agreement") if runs else None, percent)
    worst = min(places, key=lambda place: agreeing[place] / rows[place])
    return _count(agreeing[worst], rows[worst])


def _count(agreeing: int, rows: int) -> Cell:
    share = agreeing / rows
    note = ""
    if rows >= _FEW_ROWS:
        note = percent(share)
    return figure(share, lambda _: f"{agreeing:,} of {rows:,}", note=note)
