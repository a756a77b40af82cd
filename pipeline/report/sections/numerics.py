"""Errors of outputs, compared with those of the source: limits, figures, and a chart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.report import charts
from pipeline.report.cells import figure, name, source, text, verdict_cell
from pipeline.report.elements import Cell, Chart, DataTable, Json, ReportSection, Row
from pipeline.report.formatting import NOTHING, decibel, error, percent, ratio, short
from pipeline.report.records import UNASKED
from pipeline.report.sections.movement import movement_table
from pipeline.report.sections.reference import describe_comparison, describe_limits
from pipeline.store.errors import listed, plural

_LIMITS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "max_mean_abs": ("mean absolute error at most {}", short),
    "max_p999_abs": ("99.9th percentile of the absolute error at most {}", short),
    "max_relative": ("relative error at most {}", short),
    "min_sqnr": ("SQNR at least {} dB", short),
    "min_cosine": ("cosine at least {}", short),
    "min_agreement": ("greatest values at the same place in at least {} of rows", percent),
}
# Titles of columns, the figures in them, and how these are formatted.
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
_MOST_NAMED = 4  # methods in a sentence
_OF_CALLS = ("99.9 %", "relative")  # figures that only the table of every call has room for
_FEW_ROWS = 100  # from which on a share says more than it hides
_MOST_SETS = 16  # of one output in the chart of errors; the worst


class Output(NamedTuple):
    """An output of a call. `suffix` names it where the call has several, `where` is its input set,
    and `ok` whether no failure of the method is about it."""

    method: Json
    run: Json
    errors: Json
    suffix: str
    where: str
    ok: bool


def _outputs(report: Json) -> Iterator[Output]:
    """Yield the outputs of every call."""
    for method in report["methods"]:
        for run in method["runs"]:
            step = f" (call {run['step']} from {run['sequence']})" if run.get("step") else ""
            where = f"{run['origin']}{step}"
            count = len(run["outputs"])
            names = method.get("outputs") or [f"output[{n}]" for n in range(count)]
            for output, errors in zip(names, run["outputs"], strict=False):
                suffix = f", {output}" if count > 1 else ""
                failed = any(
                    failure["inputs"] in (where, run["origin"])
                    and failure["output"] in ("", output)
                    for failure in method["failures"]
                )
                yield Output(method, run, errors, suffix, where, not failed)


def section(report: Json) -> ReportSection:
    places = report.get("places", {})
    ran = any(method["runs"] or not method["not_run"] for method in report["methods"])
    methods = [row for m in report["methods"] if ran for row in _method_rows(m, places)]
    return ReportSection(
        "numerics",
        "Numerics",
        *_limits(report),
        DataTable("methods", "Worst figures of each method", methods),
        _errors(report),
        movement_table(report["methods"]),
        DataTable("skipped", "Not run", _skipped(report["methods"])),
    )


def calls_section(report: Json) -> ReportSection:
    """Return the section of every call's outputs, those that failed first."""
    rows = []
    for each in sorted(_outputs(report), key=lambda each: each.ok):
        mismatch = each.errors.get("mismatch")
        rows.append(
            {
                "method": name(each.method["method"]),
                "input set": each.where + each.suffix,
                "verdict": Cell(mismatch, kind="bad") if mismatch else _output_verdict(each),
                **_figures(each.errors),
            }
        )
    table = DataTable("calls", "Outputs of every call", rows, brief=0)
    return ReportSection("calls", "Every call", table)


def _limits(report: Json) -> Iterator[str]:
    """Yield a sentence on how the package was run, and what limits follow where none are set."""
    settings = report["settings"]
    ran = any(method["runs"] for method in report["methods"] if method["kind"] == "program")
    if "atol" not in settings or not ran:
        return
    inputs = f"{plural(settings['inputs'], 'generated input set')} (seed {settings['seed']})"
    steps = f"{plural(settings['steps'], 'call')} in sequence where a method has state"
    yield f"Run on the examples, and on {inputs}; {steps}."
    reasons: dict[str, list[str]] = {}
    for method in report["methods"]:
        for held in (method, method.get("quantized") or {}):
            if (why := held.get("limits_reason")) and method["runs"]:
                reasons.setdefault(why, []).append(method["method"])
    for why, names in reasons.items():
        yield f"Limits of {listed(dict.fromkeys(names), _MOST_NAMED)}: {why}."


def _limit_words(limits: Json) -> list[str]:
    found = [
        words.format(style(limits[key]))
        for key, (words, style) in _LIMITS.items()
        if limits.get(key) is not None
    ]
    if limits.get("atol") is not None:
        atol, rtol = short(limits["atol"]), short(limits["rtol"] or 0)
        found.insert(0, f"absolute error at most {atol} + {rtol} × |expected|")
    return found


def _output_verdict(output: Output) -> Cell:
    if output.ok and not output.errors.get("judged", True):
        return verdict_cell("not judged")
    return verdict_cell("passed" if output.ok else "failed")


def _method_rows(method: Json, places: Mapping[str, str]) -> Iterator[Row]:
    """Yield a row for each comparison of a method: with what it was lowered from, and, where it was
    quantized on the way, with the float program; of what it was exported to with its reference; on
    examples and on generated inputs apart."""
    note = "with state" if method["state"] else method["kind"]
    href = source(places.get(f"methods.{method['method']}")).href
    head = {"method": name(method["method"], note, href)}
    quantization, held = method.get("quantization"), method.get("quantized")
    if quantization is None:
        on = _EXAMPLES if method.get("examples") else _GENERATED
        row = _row(method, "source", _count_calls(method, on), method["verdict"])
        yield {**head, **row, "agreement": _agreement(method)}
    else:
        lowering = held or {"limits": {}}
        calls = f"{plural(len(method['runs']), 'call')} on all inputs" if held else ""
        yield {**head, **_row(lowering, "quantized program", calls, method["verdict"])}
        yield {**head, **_quantization_row(method, quantization)}
    if method["kind"] == "program":
        yield {**head, **_reference_row(method.get("reference"), places)}
    if generated := method.get("on_generated"):
        other = "source" if quantization is None else "float program"
        calls = _count_calls(method, _GENERATED)
        yield {**head, **_row({**generated, "limits": {}}, other, calls, "")}


def _count_calls(method: Json, on: str) -> str:
    """Return what inputs a method was called on, with the number of calls."""
    runs = [run for run in method["runs"] if bool(run.get("generated")) == (on == _GENERATED)]
    return f"{plural(len(runs), 'call')} on {on}" if runs else ""


def _row(held: Json, compared: str, on: str, verdict: str) -> Row:
    """Return the cells of a comparison, with figures and limits of `held`."""
    figures = _figures(held if on else {})
    return {
        "against": Cell(compared, note=on),
        "verdict": verdict_cell(verdict) if verdict else text(""),
        **{title: cell for title, cell in figures.items() if title not in _OF_CALLS},
        "held to": Cell("; ".join(_limit_words(held["limits"])) or NOTHING, kind="wide"),
    }


def _quantization_row(method: Json, quantization: Json) -> Row:
    """Return the cells of the quantized program against the float one, on examples if there are
    any."""
    on = _EXAMPLES if quantization["examples"] else _GENERATED
    figures = method if method["runs"] and quantization["examples"] else {}
    calls = _count_calls(method, on) if method["runs"] else f"no call, {on} in eager mode"
    held = {**figures, "limits": quantization["limits"]}
    row = _row(held, "float program", calls, quantization["verdict"])
    pools = [pool for pool in quantization["examples"] if pool["rows"]]
    if pools:
        worst = min(pools, key=lambda pool: pool["agreeing"] / pool["rows"])
        row = {**row, "agreement": _count(worst["agreeing"], worst["rows"])}
    return row


def _reference_row(reference: Json | None, places: Mapping[str, str]) -> Row:
    """Return the cells of what was exported against its reference, or that there is none."""
    about = describe_comparison(reference)
    if reference is None:
        return _row({"limits": {}}, "no reference", about, "")
    held = {"max_abs": reference["max_abs"], "limits": {}}
    row = _row(held, "reference", about, reference["verdict"])
    if limits := describe_limits(reference, places):
        row = {**row, "held to": Cell(limits, kind="wide")}
    return row


def _figures(record: Json) -> Row:
    cells = {title: figure(record.get(key), style) for title, (key, style) in _FIGURES.items()}
    if record.get("rows"):
        cells["agreement"] = _count(record["agreeing"], record["rows"])
    return cells


def _agreement(method: Json) -> Cell:
    """Return how many rows of the output that is worst by it agree, over all examples, or without
    any over all calls; of a record without their numbers, the worst share."""
    runs = [run for run in method["runs"] if not run.get("generated")] or method["runs"]
    counts: dict[int, list[int]] = {}
    for run in runs:
        for place, errors in enumerate(run["outputs"]):
            own = counts.setdefault(place, [0, 0])
            own[0] += errors.get("agreeing", 0)
            own[1] += errors.get("rows", 0)
    known = [(agreeing, rows) for agreeing, rows in counts.values() if rows]
    if not known:
        return figure(method.get("agreement") if runs else None, percent)
    return _count(*min(known, key=lambda own: own[0] / own[1]))


def _count(agreeing: int, rows: int) -> Cell:
    share = agreeing / rows
    note = percent(share) if rows >= _FEW_ROWS else ""
    return figure(share, lambda _: f"{agreeing:,} of {rows:,}", note=note)


def _skipped(methods: Sequence[Json]) -> list[Row]:
    found = [(method, "all", method["not_run"]) for method in methods if method["not_run"]]
    found += [
        (method, skip["origin"], skip["reason"]) for method in methods for skip in method["skipped"]
    ]
    found += [
        (method, "all", UNASKED)
        if each == UNASKED
        else (method, each, "left out: validate.budget was spent")
        for method in methods
        for each in method.get("left_out", ())
    ]
    found += [
        (method, f"{skip['origin']}, against the reference", skip["reason"])
        for method in methods
        for skip in method.get("reference", {}).get("skipped", ())
    ]
    return [
        {"method": name(method["method"]), "input set": inputs, "why": Cell(why, kind="wide")}
        for method, inputs, why in found
    ]


def _errors(report: Json) -> Chart | None:
    """Draw a dot for each output and input set: its error by its limit.

    Of several calls on one set, in a method with state, the worst is drawn. None where every
    output is exact, or none has a limit.
    """
    outputs = list(_outputs(report))
    sets: dict[tuple[str, str], list[tuple[float, Output]]] = {}
    for each in outputs:
        ratio = _of_limit(each, report)
        if isinstance(ratio, int | float):
            row = each.method["method"] + each.suffix
            sets.setdefault((row, each.run["origin"]), []).append((ratio, each))
    worst = [_dot(row, *max(own, key=lambda each: each[0])) for (row, _), own in sets.items()]
    if not (drawn := [dot for dot in _most_sets(worst) if dot["ratio"] > 0]):
        return None
    about = (
        "A dot per input set: the error divided by the limit that it comes nearest to, on a "
        "logarithmic axis. Dashed: 1, the limit. Hover or tap for figures."
    )
    if lacking := len(outputs) - sum(map(len, sets.values())):
        about += f" {plural(lacking, 'output')} not drawn: no limit, or no bound to the error."
    legend = [("within limits", "var(--c0)"), ("failed", "var(--bad)")]
    legend = [] if all(dot["ok"] for dot in worst) else legend
    label = "Errors divided by their limits, by method and input set"
    return Chart("Errors by their limits.", about, legend, label, charts.errors(drawn))


def _of_limit(output: Output, report: Json) -> float | str | None:
    """Return the greatest ratio of an error of an output to its limit."""
    if "of_limit" in output.errors:
        found: float | str | None = output.errors["of_limit"]
        return found
    limit = (output.method["limits"] or report["settings"]).get("atol")  # of an older record
    greatest = output.errors["max_abs"]
    return greatest / limit if limit and isinstance(greatest, int | float) else None


def _dot(row: str, ratio: float, output: Output) -> Json:
    parts = {"mean": "mean_abs", "99.9 %": "p999_abs", "max": "max_abs"}
    words = ", ".join(f"{title} {error(output.errors.get(key))}" for title, key in parts.items())
    failed = "" if output.ok else ", failed"
    about = f"{row}, {output.where}: {error(ratio)} of its limit; {words}{failed}"
    return {"row": row, "ratio": ratio, "ok": output.ok, "description": about}


def _most_sets(dots: Sequence[Json]) -> list[Json]:
    """Keep the input sets with the greatest errors of each output, in their order."""
    kept = []
    for row in dict.fromkeys(dot["row"] for dot in dots):
        own = [dot for dot in dots if dot["row"] == row]
        least = sorted((dot["ratio"] for dot in own), reverse=True)[:_MOST_SETS][-1]
        kept += [dot for dot in own if dot["ratio"] >= least][:_MOST_SETS]
    return kept
